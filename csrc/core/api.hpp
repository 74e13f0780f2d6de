// What every library of kernels shares with ctypes: C names, visible although all else is hidden.
#pragma once

#define TIDEGS_API extern "C" __attribute__((visibility("default")))
