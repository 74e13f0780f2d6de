// A hash of 64 bits that every machine agrees on.
#pragma once

#include <cstdint>

namespace tidegs {

// The finaliser of SplitMix64 (Steele et al. 2014).
inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

}  // namespace tidegs
