// What the Python side hands over: the layout of a slot, a camera, and the blocks of a pass. Mirrors device/cpu.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidegs {

constexpr int TILE = 16;
constexpr float ALPHA_MIN = 1.0f / 255.0f;
constexpr float ALPHA_MAX = 0.999f;
constexpr float T_MIN = 1e-4f;
constexpr float LOG2_ALPHA_MIN = -7.99435343685886f;

enum Component { MEANS = 0, QUATS = 3, SCALES = 7, OPACITIES = 10, SH0 = 11, BASE = 14 };
enum Flag : uint8_t { FIRST_OF_STEP = 4, LAST_OF_STEP = 8 };

// Byte offsets of the planes of a slot; grads and stats are -1 where slots lack them.
struct Layout {
    int64_t slot_nbytes, capacity, rest_components;
    int64_t base, rest, m_base, m_rest, v_base, v_rest, grads;
    int64_t stats, stat_components;
};

// A pinhole camera and what gsplat.rasterization is told. R and t: scene frame -> OpenCV camera frame.
struct Camera {
    float R[9], t[3], position[3];
    float fx, fy, cx, cy;
    int32_t width, height;
    int32_t sh_degree, antialiased, absgrad;
    float near_plane, far_plane, eps2d, radius_clip;
    float background[3];
};

struct Blocks {
    uint8_t* arena;
    const int32_t *slots, *counts;
    int32_t n;
};

// Planes of a whole image, float32; depth and its gradient, and that of alpha, may be null.
struct Image {
    float *rgb, *alpha, *depth;  // [3, height, width], [height, width], [height, width]
    int64_t height;
};
struct ImageGrad {
    const float *rgb, *alpha, *depth;
    int64_t height;
};

struct Adam {
    float lr[6];  // means, quats, scales, opacities, sh0, shN; divided by the first bias correction
    float beta1, beta2, eps;
    float inv_sqrt_bias2;  // 1 / sqrt(1 - beta2^step)
    float opacity_reg, scale_reg;  // added gradients: of each opacity, and of each scale
    float cameras;  // of the step, where its gradients in image space go to the statistics; else 0
    float drift;  // dense Adam (all rows of a block take the step): reach of momentum, in rates times |m| / sqrt(v); else 0
};

struct Updates {
    float *lo, *hi, *extent;  // [n, 3], [n, 3], [n]
    int32_t* visible;
    uint8_t* touched;
    double* pose;  // [n, 3, 4], see camera_grad; null where nobody asks
};

// One row after projection: 64 bytes, so that a tile reads one line of cache for each splat.
struct alignas(64) Splat {
    float mx, my;          // mean, pixels
    float a, b, c;         // log2(alpha) = lo - (a dx^2 + b dx dy + c dy^2)
    float lo;              // log2(opacity)
    float r, g, bl;        // colour
    float depth;           // camera z
    float hy, slope, width;  // where alpha >= 1/255: |dy| <= hy and |dx - slope dy| <= width sqrt(hy^2 - dy^2)
    uint32_t row;          // within its item
    uint32_t first, count;  // its visits in the range being rendered
};

}  // namespace tidegs
