"""What is assumed of a solution: prior, diffusion, residual; Gaussians and their structure."""
