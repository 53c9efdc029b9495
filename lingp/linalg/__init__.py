"""Linear algebra that knows nothing of networks: roots, repairs, streamed products, derivatives."""
