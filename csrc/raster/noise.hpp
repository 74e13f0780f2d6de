// Noise on the means of whole blocks (MCMC, Kheradmand et al. 2024, arXiv 2404.09591, eq. 10), and what is learned of a
// block on the way. Invariant: a row's noise follows from its block's key and its number alone.
#pragma once

#include <vector>

#include "core/hash.hpp"
#include "core/math.hpp"
#include "core/pool.hpp"
#include "raster/bounds.hpp"
#include "raster/geometry.hpp"

namespace tidegs {

struct Noise {
    const uint64_t* keys;   // [n]
    const float* scales;    // [n]
    float floor;            // opacity up to which a row is dead
    float means_reach, scales_reach, eps;  // how far momentum alone takes rows: factors of |m| / (sqrt(v) + eps), or 0
};

struct Noised {
    float *lo, *hi, *extent;  // [n, 3], [n, 3], [n]
    double* mass;             // [n], sum of the opacities above the floor
    int32_t* dead;            // [n], rows not above it
};

constexpr int NOISE_ROWS = 1024;  // of a block, in one task
constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
constexpr int ROW_DRAWS = 8;  // counters set apart for each row

// sin(2 pi s) for |s| <= 1/4, absolute error under 2e-7 (the series).
inline vf sin_turn(vf s) {
    const vf x = s * 6.283185307179586f, y = x * x;
    vf p = set1(-2.5052108e-8f);
    p = fma(p, y, set1(2.7557319e-6f));
    p = fma(p, y, set1(-1.9841270e-4f));
    p = fma(p, y, set1(8.3333333e-3f));
    p = fma(p, y, set1(-1.6666667e-1f));
    return fma(p * y, x, x);
}

// Normal numbers of W rows from `row` on, draw number k of each: Box and Muller (1958), one for each hash.
inline vf normal(uint64_t key, int row, int k) {
    alignas(64) float u[W], v[W];
    for (int i = 0; i < W; ++i) {
        const uint64_t h = mix(key + (uint64_t(row + i) * ROW_DRAWS + k + 1) * GOLDEN);
        u[i] = (float(uint32_t(h >> 32)) + 0.5f) * 0x1p-32f;
        v[i] = float(uint32_t(h)) * 0x1p-32f;
    }
    const vf radius = sqrt(max(log2(load(u)) * (-2.0f * LN2), vf{}));
    return radius * sin_turn(abs(load(v) - 0.5f) - 0.25f);  // cos(2 pi v)
}

class BlockNoise {
public:
    // What a task has found out.
    struct Learned {
        RowBounds bounds;
        double mass = 0;
        int32_t dead = 0;
    };

    BlockNoise(const Layout& layout, uint8_t* slot, int count, uint64_t key, float scale, const Noise& noise)
        : base_(reinterpret_cast<float*>(slot + layout.base)), m_(reinterpret_cast<float*>(slot + layout.m_base)),
          v_(reinterpret_cast<float*>(slot + layout.v_base)), stride_(layout.capacity), count_(count), key_(key),
          scale_(scale), noise_(noise) {}

    Learned run(int begin) const {
        Learned out;
        const int end = std::min(count_, begin + NOISE_ROWS);
        for (int row = begin; row < end; row += W) group(row, out);
        const Reach reach{noise_.means_reach > 0, noise_.means_reach, noise_.scales_reach, noise_.eps};
        out.bounds = row_bounds(base_, m_, v_, stride_, begin, end, reach);
        return out;
    }

private:
    float* at(int component, int row) const { return base_ + component * stride_ + row; }

    void group(int row, Learned& out) const {
        const vm used = first(count_ - row);
        const vf opacity = sigmoid(load(at(OPACITIES, row)));
        move(row, used, sigmoid(100.0f * ((1.0f - opacity) - 0.995f)) * scale_);
        const vm alive = band(used, gt(opacity, set1(noise_.floor)));
        out.mass += sum(keep(alive, opacity));
        out.dead += __builtin_popcount(bits(used)) - __builtin_popcount(bits(alive));
    }

    // mean += R S^2 R^T (size * normal numbers)
    void move(int row, vm used, vf size) const {
        vf n[3], mean[3];
        for (int k = 0; k < 3; ++k) n[k] = size * normal(key_, row, k), mean[k] = load(at(MEANS + k, row));
        Geometry g;
        g.visible = used;
        rotation(Rows{base_ + row, stride_}, g);
        vf shift[3] = {};
        for (int axis = 0; axis < 3; ++axis) {
            const vf s = exp(load(at(SCALES + axis, row)));
            const vf along = s * s * dot3(g.Q[0][axis], g.Q[1][axis], g.Q[2][axis], n[0], n[1], n[2]);
            for (int k = 0; k < 3; ++k) shift[k] = fma(g.Q[k][axis], along, shift[k]);
        }
        for (int k = 0; k < 3; ++k) store(at(MEANS + k, row), select(used, mean[k] + shift[k], mean[k]));
    }

    float *base_, *m_, *v_;
    const size_t stride_;
    const int count_;
    const uint64_t key_;
    const float scale_;
    const Noise& noise_;
};

// Moves the means of all blocks; fills `out`.
inline void add_noise(const Layout& layout, const Blocks& blocks, const Noise& noise, const Noised& out) {
    struct Task {
        int block, row;
    };
    std::vector<Task> tasks;
    for (int b = 0; b < blocks.n; ++b)
        for (int row = 0; row < blocks.counts[b]; row += NOISE_ROWS) tasks.push_back({b, row});
    std::vector<BlockNoise::Learned> learned(tasks.size());
    auto run = [&](int i, int) {
        const int b = tasks[i].block;
        uint8_t* slot = blocks.arena + size_t(blocks.slots[b]) * layout.slot_nbytes;
        learned[i] = BlockNoise(layout, slot, blocks.counts[b], noise.keys[b], noise.scales[b], noise).run(tasks[i].row);
    };
    Pool::get().run(int(tasks.size()), run, "noise");
    std::vector<RowBounds> bounds(blocks.n);
    for (int b = 0; b < blocks.n; ++b) out.mass[b] = 0, out.dead[b] = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
        const int b = tasks[i].block;
        bounds[b].join(learned[i].bounds);
        out.mass[b] += learned[i].mass, out.dead[b] += learned[i].dead;
    }
    for (int b = 0; b < blocks.n; ++b) bounds[b].write(out.lo + 3 * b, out.hi + 3 * b, out.extent + b);
}

}  // namespace tidegs
