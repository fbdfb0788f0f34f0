"""A real Kubernetes on this one machine: `with Cluster(folder) as c:` or `python -m e2e.cluster
up`.
"""
