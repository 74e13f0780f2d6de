// The tiles of an image in Morton order, and which of them a splat can touch.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "raster/types.hpp"

namespace tidegs {

// Numbers tiles by ascending Morton code of those that exist; same order as tidegs.device.tiles.
class Grid {
public:
    void reset(int width, int height) {
        if (width == width_ && height == height_) return;
        width_ = width, height_ = height;
        across_ = (width + TILE - 1) / TILE, down_ = (height + TILE - 1) / TILE;
        std::vector<std::pair<uint32_t, int32_t>> order;
        for (int y = 0; y < down_; ++y)
            for (int x = 0; x < across_; ++x) order.push_back({spread(x) | spread(y) << 1, y * across_ + x});
        std::sort(order.begin(), order.end());
        cell_.resize(order.size());
        rank_.resize(order.size());
        for (size_t i = 0; i < order.size(); ++i) cell_[i] = order[i].second, rank_[order[i].second] = (int32_t)i;
    }
    int tiles() const { return (int)cell_.size(); }
    int across() const { return across_; }
    int down() const { return down_; }
    int x0(int tile) const { return cell_[tile] % across_ * TILE; }
    int y0(int tile) const { return cell_[tile] / across_ * TILE; }

    // Calls f(tile) for each tile of [first, last) that has a pixel centre in the ellipse where alpha reaches 1/255
    // (exact but for a margin); row by row.
    template <class F>
    void touched(const Splat& s, int first, int last, F&& f) const {
        const float top = std::max(s.my - s.hy, 0.0f), bottom = std::min(s.my + s.hy, (float)height_);
        const int ty0 = std::max(0, first_tile(top)), ty1 = std::min(down_ - 1, last_tile(bottom));
        const float h2 = s.hy * s.hy, aspect = std::sqrt(s.slope * s.slope + s.width * s.width);
        const float turn = s.hy * s.slope / aspect;  // dy where dx is greatest
        if (ty0 == ty1) {  // most splats lie within one tile: then their bounds say all
            const float hx = s.hy * aspect + MARGIN;
            const int tx0 = first_tile(std::max(s.mx - hx, 0.0f)), tx1 = last_tile(std::min(s.mx + hx, (float)width_));
            if (tx0 == tx1 && tx0 >= 0 && tx0 < across_) {
                const int tile = rank_[ty0 * across_ + tx0];
                if (tile >= first && tile < last) f(tile);
                return;
            }
        }
        for (int ty = ty0; ty <= ty1; ++ty) {
            const float lo = std::max(ty * TILE + 0.5f - s.my, -s.hy), hi = std::min(ty * TILE + 15.5f - s.my, s.hy);
            const float a = std::min(std::max(turn, lo), hi), b = std::min(std::max(-turn, lo), hi);
            float right = s.mx + s.slope * a + s.width * std::sqrt(std::max(h2 - a * a, 0.0f)) + MARGIN;
            float left = s.mx + s.slope * b - s.width * std::sqrt(std::max(h2 - b * b, 0.0f)) - MARGIN;
            left = std::max(left, 0.0f), right = std::min(right, (float)width_);
            const int tx0 = std::max(0, first_tile(left)), tx1 = std::min(across_ - 1, last_tile(right));
            for (int tx = tx0; tx <= tx1; ++tx) {
                const int tile = rank_[ty * across_ + tx];
                if (tile >= first && tile < last) f(tile);
            }
        }
    }

    static constexpr float MARGIN = 0.02f;  // pixels

private:
    // The first tile with a pixel centre at or after a coordinate >= 0, the last with one at or before it.
    static int first_tile(float at) { return (int)((at + 0.5f) * (1.0f / TILE)); }
    static int last_tile(float at) { return at < 0.5f ? -1 : (int)((at - 0.5f) * (1.0f / TILE)); }
    static uint32_t spread(uint32_t v) {
        v = (v | v << 8) & 0x00ff00ff;
        v = (v | v << 4) & 0x0f0f0f0f;
        v = (v | v << 2) & 0x33333333;
        return (v | v << 1) & 0x55555555;
    }

    int width_ = 0, height_ = 0, across_ = 0, down_ = 0;
    std::vector<int32_t> cell_, rank_;
};

}  // namespace tidegs
