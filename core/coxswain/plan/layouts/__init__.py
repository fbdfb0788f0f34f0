"""Layouts of clusters whose devices differ in speed: replicas, stages, layers, micro-batches, and rivals to compare with."""
