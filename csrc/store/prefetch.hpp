// Rows in arbitrary places of memory are asked for ahead of their use.
#pragma once

#include <cstdint>

namespace tidegs::store {

constexpr int64_t kAhead = 16;  // rows

inline void prefetch(const void* row, int64_t nbytes) {
    const auto* p = static_cast<const uint8_t*>(row);
    for (int64_t at = 0; at < nbytes; at += 64) __builtin_prefetch(p + at);
    __builtin_prefetch(p + nbytes - 1);
}

}  // namespace tidegs::store
