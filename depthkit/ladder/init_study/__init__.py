"""What a model does to its residual stream before the first step: variance, angles, Jacobians, gradients."""
