// All kernels, in one translation unit for each instruction set.
#include "core/core.inl"
#include "core/peak.inl"
#if __has_include("loss/ssim.inl")
#include "loss/ssim.inl"
#endif
#if __has_include("raster/raster.inl")
#include "raster/raster.inl"
#endif
