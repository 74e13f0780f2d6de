"""tidegs: out-of-core training of 3D Gaussian Splatting."""

__version__ = "0.1.0"
