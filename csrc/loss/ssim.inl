// L1 and D-SSIM with their gradient, in one sweep over each tile with sliding windows of rows that stay in cache.
// Invariant: tiles depend on the image size alone and their sums are added in order, so the number of threads changes
// no bit. SSIM is that of Wang et al. 2004 with an 11x11 Gaussian window, over windows that lie within the image.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/api.hpp"
#include "core/pool.hpp"
#include "loss/window.hpp"

namespace tidegs::loss {

constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;
constexpr int kStripRows = 192;  // most rows of the image in one task
constexpr int kStep = 32;        // rows that a tile takes in at a time
constexpr int kWindowRows = kStep + 2 * kHalf;
// x and y are taken less this: variances do not change, and cancel less in E[x^2] - E[x]^2.
constexpr float kShift = 0.5f;

struct Image {
    const float* x;          // [3, height, width]
    const unsigned char* y;  // [height, width, 3]
    float* grad;             // [3, height, width]
    int width, height;
    float l1_weight, ssim_weight;  // of the gradients of sum |x - y| and of the sum of SSIM
};

struct Sums {
    double l1 = 0, ssim = 0;
};

// out[i] = in[3 i]; reads no byte behind in[3 n - 3].
inline void every_third(const unsigned char* in, int n, unsigned char* out) {
    int i = 0;
#if !defined(__clang__)  // which has no __builtin_shuffle
    typedef unsigned char Bytes __attribute__((vector_size(16)));
    constexpr Bytes low = {0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30};
    constexpr Bytes all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29};
    for (; 3 * i + 48 <= 3 * n - 2; i += 16) {
        Bytes a, b, c;
        std::memcpy(&a, in + 3 * i, 16), std::memcpy(&b, in + 3 * i + 16, 16), std::memcpy(&c, in + 3 * i + 32, 16);
        const Bytes picked = __builtin_shuffle(__builtin_shuffle(a, b, low), c, all);
        std::memcpy(out + i, &picked, 16);
    }
#endif
    for (; i < n; ++i) out[i] = in[3 * i];
}

// One channel of rows [row0, row1) and columns [col0, col1) of the image.
// Of image row r, the step that begins at input row a holds: inputs in row r - (a - 10) of its window, maps in row
// r - (a - 15). Of image column c: inputs at c - (col0 - 10), maps at c - (col0 - 5), gradients at c - col0.
class Tile {
public:
    Tile(const Image& image, int channel, int row0, int row1, int col0, int col1)
        : image_(image), channel_(channel), row0_(row0), row1_(row1), col0_(col0), cols_(col1 - col0) {
        std::memset(in_, 0, sizeof in_);
        std::memset(sums_, 0, sizeof sums_);
        std::memset(l1_, 0, sizeof l1_);
        std::memset(ssim_, 0, sizeof ssim_);
    }

    Sums run() {
        for (int a = row0_ - 2 * kHalf; a - 2 * kHalf < row1_; a += kStep) {
            for (int k = 0; k < kStep; ++k) take_in(a + k, 2 * kHalf + k);
            for (int t = 0; t < kStep; t += kBlock) make_maps(a - kHalf + t, t);
            for (int t = 0; t < kStep; t += kBlock) make_grads(a - 2 * kHalf + t, t);
            for (auto& plane : in_) slide(plane);
            for (auto& plane : maps_) slide(plane);
        }
        Sums sums;
        for (int j = 0; j < cols_; ++j) sums.l1 += l1_[j];
        const int first = std::max(0, kHalf - col0_), last = std::min(cols_, image_.width - kHalf - col0_);
        for (int j = first; j < last; ++j) sums.ssim += ssim_[kHalf + j];
        return sums;
    }

private:
    enum { X, DIFF, SQUARES, DIFF2 };  // x, d = x - y; and of sums_ alone: x^2 + y^2, d^2
    enum { BY_1, BY_X, BY_DIFF };      // of maps_: d SSIM / d x = 2 (W BY_1 + x W BY_X - d W BY_DIFF), W the window

    static void slide(float* plane) { std::memcpy(plane, plane + kStep * kPitch, 2 * kHalf * kPitch * sizeof(float)); }

    // Inlined into `run`, these would spill each other's registers.
    [[gnu::noinline]] void take_in(int row, int at) {
        if (row < 0 || row >= image_.height) return;
        const int first = std::max(0, col0_ - 2 * kHalf), last = std::min(image_.width, col0_ + cols_ + 2 * kHalf);
        const int offset = at * kPitch + first - (col0_ - 2 * kHalf);
        const float* x = image_.x + (size_t(channel_) * image_.height + row) * image_.width + first;
        const unsigned char* y = image_.y + (size_t(row) * image_.width + first) * 3 + channel_;
        float *__restrict in_x = in_[X] + offset, *__restrict diff = in_[DIFF] + offset;
        const int n = last - first;
        unsigned char bytes[kPitch];
        every_third(y, n, bytes);
        for (int i = 0; i < n; ++i) {
            const float value = float(int(bytes[i])) / 255.0f, d = x[i] - value;
            in_x[i] = x[i] - kShift;
            diff[i] = d;
        }
    }

    // Maps of the rows `row` .. `row` + 3, whose windows begin at input row t of the step.
    void make_maps(int row, int t) {
        const int first = std::max(kHalf, row0_ - kHalf), last = std::min(image_.height, row1_ + 2 * kHalf) - kHalf;
        const bool needed = row + kBlock > first && row < last;
        if (needed) sum_inputs(t);
        for (int r = 0; r < kBlock; ++r) {
            const int at = (2 * kHalf + t + r) * kPitch;
            if (row + r < first || row + r >= last) {
                for (auto& map : maps_) std::memset(map + at, 0, kPitch * sizeof(float));
            } else {
                make_map_row(r, at, row + r >= row0_ && row + r < row1_ ? ssim_ : other_);
                clear_columns_without_window(at);
            }
        }
    }

    // Squares are made on the way: that costs less than room for them in cache.
    void sum_inputs(int t) {
        const float *x = in_[X] + t * kPitch, *d = in_[DIFF] + t * kPitch;
        const auto squares = [&](int at) {
            const vf vx = load(x + at), y = vx - load(d + at);
            return Two{vx, fma(vx, vx, y * y)};
        };
        const auto diff2 = [&](int at) {
            const vf vd = load(d + at);
            return Two{vd, vd * vd};
        };
        down_two(squares, sums_[X], sums_[SQUARES], cols_ + 4 * kHalf);
        down_two(diff2, sums_[DIFF], sums_[DIFF2], cols_ + 4 * kHalf);
    }

    // SSIM = a b / (c d) of Wang et al. 2004, eq. 13, with a / c = 1 - (E[x] - E[y])^2 / c and b / d = 1 - var(x - y) / d:
    // near convergence both fractions are small, and nothing cancels.
    [[gnu::noinline]] void make_map_row(int r, int at, float* ssim) {
        for (int j = 0; j < cols_ + 2 * kHalf; j += W) {
            const float* from = &sums_[0][r * kPitch + j];
            const vf x = across(from), diff = across(from + DIFF * kBlock * kPitch), y = x - diff;
            const vf var = fnma(x, x, fnma(y, y, across(from + SQUARES * kBlock * kPitch)));
            const vf var_diff = fnma(diff, diff, across(from + DIFF2 * kBlock * kPitch));
            const vf mean_x = x + kShift, mean_y = mean_x - diff;
            const vf c = fma(mean_x, mean_x, fma(mean_y, mean_y, set1(kC1))), d = var + kC2;
            const vf inverse = 1.0f / (c * d), by_c = d * inverse, by_d = c * inverse;
            const vf lost_mean = diff * diff * by_c, lost_var = var_diff * by_d;
            const vf mean_term = 1.0f - lost_mean, var_term = 1.0f - lost_var;
            const vf by_diff = mean_term * by_d, by_x = by_diff * lost_var;
            const vf by_1 = var_term * by_c * fma(lost_mean, mean_x, -diff);
            store(maps_[BY_1] + at + j, fnma(by_x, x, fma(by_diff, diff, by_1)));
            store(maps_[BY_X] + at + j, by_x);
            store(maps_[BY_DIFF] + at + j, by_diff);
            store(ssim + j, fma(mean_term, var_term, load(ssim + j)));
        }
    }

    void clear_columns_without_window(int at) {
        const int left = std::max(0, 2 * kHalf - col0_), right = std::max(0, image_.width - col0_);
        for (auto& map : maps_) {
            std::fill(map + at, map + at + left, 0.0f);
            if (right < cols_ + 2 * kHalf) std::fill(map + at + right, map + at + cols_ + 2 * kHalf, 0.0f);
        }
    }

    // Gradients of the rows `row` .. `row` + 3, whose windows begin at map row t of the step.
    void make_grads(int row, int t) {
        if (row + kBlock <= row0_ || row >= row1_) return;
        for (int q = 0; q < 3; ++q) down(maps_[q] + t * kPitch, sums_[q], cols_ + 2 * kHalf);
        for (int r = 0; r < kBlock; ++r) {
            if (row + r >= row0_ && row + r < row1_) make_grad_row(row + r, r, (t + r) * kPitch + 2 * kHalf);
        }
    }

    [[gnu::noinline]] void make_grad_row(int row, int r, int at) {
        const vf l1_weight = set1(image_.l1_weight), ssim_weight = set1(2.0f * image_.ssim_weight);
        float* const to = image_.grad + (size_t(channel_) * image_.height + row) * image_.width + col0_;
        for (int j = 0; j < cols_; j += W) {
            const float* from = &sums_[0][r * kPitch + j];
            const vf x = load(in_[X] + at + j), d = load(in_[DIFF] + at + j);
            vf g = across(from + BY_1 * kBlock * kPitch);
            g = fma(x, across(from + BY_X * kBlock * kPitch), g);
            g = fnma(d, across(from + BY_DIFF * kBlock * kPitch), g);
            const vf sign = keep(lt(vf{}, d), l1_weight) - keep(lt(d, vf{}), l1_weight);
            const vf grad = fma(ssim_weight, g, sign);
            if (j + W <= cols_)
                store(to + j, grad);
            else
                std::memcpy(to + j, &grad, (cols_ - j) * sizeof(float));
            store(l1_ + j, load(l1_ + j) + abs(d));
        }
    }

    const Image& image_;
    const int channel_, row0_, row1_, col0_, cols_;
    alignas(64) float in_[2][kWindowRows * kPitch];
    alignas(64) float maps_[3][kWindowRows * kPitch];
    alignas(64) float sums_[4][kBlock * kPitch];
    alignas(64) float l1_[kPitch], ssim_[kPitch], other_[kPitch];
};

// Parts that divide [0, n) evenly, none longer than `most`.
inline int parts(int n, int most) { return (n + most - 1) / most; }
inline int begin_of(int part, int of, int n) { return int(int64_t(n) * part / of); }

inline Sums sweep(const Image& image) {
    const int rows = parts(image.height, kStripRows), cols = parts(image.width, kTileCols);
    std::vector<Sums> sums(size_t(3) * rows * cols);
    Pool::get().run(int(sums.size()), [&](int item, int) {
        const int col = item % cols, row = item / cols % rows, channel = item / cols / rows;
        Tile tile(image, channel, begin_of(row, rows, image.height), begin_of(row + 1, rows, image.height),
                  begin_of(col, cols, image.width), begin_of(col + 1, cols, image.width));
        sums[item] = tile.run();
    });
    Sums total;
    for (const Sums& s : sums) total.l1 += s.l1, total.ssim += s.ssim;
    return total;
}

}  // namespace tidegs::loss

// total = (1 - ssim_lambda) mean |x - y| + ssim_lambda (1 - SSIM), as gsplat's trainer with fused_ssim(padding="valid"):
// image x float [3, height, width], target y bytes [height, width, 3] / 255, SSIM the mean over channels and the windows
// that lie within the image. An image with no such window (a side under 11) counts as SSIM = 1.
// Writes grad [3, height, width] = scale * d total / d image, and out = {L1, SSIM, total}.
TIDEGS_API void tidegs_ssim_l1(const float* image, const unsigned char* target, int width, int height, float ssim_lambda,
                               float scale, float* grad, double* out) {
    const int valid_rows = height - 2 * tidegs::loss::kHalf, valid_cols = width - 2 * tidegs::loss::kHalf;
    const bool any_window = valid_rows > 0 && valid_cols > 0;
    const double values = 3.0 * width * height, windows = any_window ? 3.0 * valid_rows * valid_cols : 1.0;
    const double lambda = ssim_lambda;
    const tidegs::loss::Sums sums = tidegs::loss::sweep({image, target, grad, width, height,
                                                         float(scale * (1.0 - lambda) / values),
                                                         any_window ? float(-scale * lambda / windows) : 0.0f});
    out[0] = sums.l1 / values;
    out[1] = any_window ? sums.ssim / windows : 1.0;
    out[2] = (1.0 - lambda) * out[0] + lambda * (1.0 - out[1]);
}
