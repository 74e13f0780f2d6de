#include "isa/kernels.inl"
