"""Many processes that train one model: launching, slicing batches, meeting gradients, sharded checkpoints."""
