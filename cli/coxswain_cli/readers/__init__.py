"""Readers of jobs: from a work directory, a cluster, or a checkpoint location. One protocol, `values.JobReader`."""
