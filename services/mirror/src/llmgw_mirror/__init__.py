"""The mirror: model weights inside the cluster, fetched once, verified, published, served."""
