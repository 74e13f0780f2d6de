// A stable sort of a tile's visits by depth: equal depths keep the order of (block, row).
#pragma once

#include <vector>

#include "raster/types.hpp"

namespace tidegs {

// A splat in a tile. `key` is its depth's bits, until the tile is sorted; then the groups of pixels it adds to.
struct Visit {
    union {
        uint64_t groups;
        uint64_t key;
    };
    uint32_t splat;
    uint32_t slot;  // where its partial gradient goes
};

class DepthSort {
public:
    // Sorts v[0, n) by key. Positive floats order as their bits do.
    void sort(Visit* v, int n) {
        if (n < 2) return;
        if (n <= 32) return insertion(v, n);
        uint32_t lo = ~0u, hi = 0;
        for (int i = 0; i < n; ++i) lo = std::min(lo, (uint32_t)v[i].key), hi = std::max(hi, (uint32_t)v[i].key);
        if ((int)a_.size() < n) a_.resize(n + n / 2), b_.resize(n + n / 2), copy_.resize(n + n / 2);
        uint64_t *from = a_.data(), *to = b_.data();
        for (int i = 0; i < n; ++i) from[i] = (uint64_t)((uint32_t)v[i].key - lo) << 32 | (uint32_t)i;
        const uint32_t range = hi - lo;
        for (int shift = 0; shift < 32 && range >> shift; shift += 8) {
            digit(from, to, n, 32 + shift);
            std::swap(from, to);
        }
        std::copy(v, v + n, copy_.data());
        for (int i = 0; i < n; ++i) v[i] = copy_[(uint32_t)from[i]];
    }

private:
    static void insertion(Visit* v, int n) {
        for (int i = 1; i < n; ++i) {
            const Visit x = v[i];
            int j = i;
            for (; j > 0 && v[j - 1].key > x.key; --j) v[j] = v[j - 1];
            v[j] = x;
        }
    }
    static void digit(const uint64_t* from, uint64_t* to, int n, int shift) {
        uint32_t at[256] = {};
        for (int i = 0; i < n; ++i) ++at[from[i] >> shift & 255];
        uint32_t sum = 0;
        for (uint32_t& c : at) {
            const uint32_t count = c;
            c = sum;
            sum += count;
        }
        for (int i = 0; i < n; ++i) to[at[from[i] >> shift & 255]++] = from[i];
    }

    std::vector<uint64_t> a_, b_;
    std::vector<Visit> copy_;
};

}  // namespace tidegs
