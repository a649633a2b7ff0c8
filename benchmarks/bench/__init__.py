"""What the speed benchmarks share: shapes, candidates, paired timing, limits, reports.

`python -m benchmarks.train_step`, and likewise `overhead`, `depth_scaling` and `moe`, from the root of the
checkout.
"""
