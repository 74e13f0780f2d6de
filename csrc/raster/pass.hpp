// A pass: project, bin, sort, blend; then differentiate, fold, update. Invariant: bits depend neither on threads, nor on
// how the image is cut into ranges of tiles: a row's gradient is a left fold over tiles in Morton order.
#pragma once

#include <atomic>
#include <memory>

#include "core/pool.hpp"
#include "core/scratch.hpp"
#include "raster/update.hpp"

namespace tidegs {

class Rasterizer {
public:
    Rasterizer(const Layout& layout, int64_t budget) : layout_(layout), budget_(budget) {}

    // A camera whose blocks come in parts, in ascending order of blocks: begin, add each, finish; then differentiate, and
    // update each part, whose blocks may lie in other slots by then. Between them the arena is the caller's.
    void begin(const Camera& cam) {
        cam_ = cam;
        grid_.reset(cam.width, cam.height);
        items_.clear();
        parts_.assign(1, 0);
        splat_count_ = 0;
    }
    void add(const Blocks& blocks) {
        project(blocks);
        parts_.push_back((int)items_.size());
    }
    void finish(const Image& image) {
        plan();
        for (size_t r = 0; r + 1 < cuts_.size(); ++r) {
            bin(cuts_[r], cuts_[r + 1]);
            blend(cuts_[r], cuts_[r + 1], &image);
        }
    }
    void differentiate(const ImageGrad& grad) {
        const bool whole = this->whole();
        for (size_t r = 0; r + 1 < cuts_.size(); ++r) {
            if (!whole) {
                bin(cuts_[r], cuts_[r + 1]);
                blend(cuts_[r], cuts_[r + 1], nullptr);
            }
            differentiate(cuts_[r], cuts_[r + 1], grad);
            if (!whole) fold_range(r == 0);
        }
    }
    void update(int part, const Blocks& blocks, const uint8_t* flags, const Adam& adam, const Updates& out) {
        update(parts_[part], parts_[part + 1], blocks, flags, adam, out);
    }

    // For the twin: the sorted lists of the last image, where it is one range.
    const Grid& grid() const { return grid_; }
    const Camera& camera() const { return cam_; }
    const Splat& splat(uint32_t i) const { return splats_[i]; }
    std::pair<const Visit*, const Visit*> visits_of(int tile) const {
        return {&visits_[starts_[tile]], visits_.data() + starts_[tile + 1]};
    }

    int64_t splats() const { return splat_count_; }
    int64_t visits() const { return total_; }
    // Pixels times splats that the last range evaluated and that counted for at least one pixel of their group.
    int64_t evaluations() const {
        int64_t groups = 0;
        for (int t = 0; t + 1 < (int)starts_.size(); ++t)
            for (int64_t v = starts_[t]; v < starts_[t] + states_[cuts_[cuts_.size() - 2] + t].visits; ++v)
                groups += __builtin_popcountll(visits_[v].groups);
        return groups * W;
    }
    int64_t ranges() const { return (int64_t)cuts_.size() - 1; }
    int64_t visit_nbytes() const { return sizeof(Visit) + sizeof(Partial) + (cam_.absgrad ? sizeof(AbsPartial) : 0) + 1; }

private:
    bool whole() const { return cuts_.size() <= 2; }

    // Appends the blocks' items and splats to those of the parts before.
    void project(const Blocks& blocks) {
        const size_t before = items_.size();
        size_t rows = 0;
        for (int b = 0; b < blocks.n; ++b)
            for (int row = 0; row < blocks.counts[b]; row += ITEM_ROWS) {
                items_.push_back({b, row, std::min(ITEM_ROWS, blocks.counts[b] - row), 0, 0, {}});
                rows += items_.back().rows;
            }
        splats_.extend(splat_count_ + rows, splat_count_);
        std::atomic<uint32_t> next{(uint32_t)splat_count_};
        Pool::get().run_together((int)(items_.size() - before), [&](int i, int) {
            ProjectedRows rows;
            Item& item = items_[before + i];
            Projector projector(layout_, blocks, cam_, item);
            projector.run(rows);
            item.first = next.fetch_add(item.count, std::memory_order_relaxed);  // places differ, orders do not
            projector.write(rows, &splats_[item.first]);
        }, "project");
        splat_count_ = next.load();
    }

    // Contiguous groups of items, of like numbers of splats: each counts and places its visits for itself.
    void group() {
        const int wanted = std::max(16, 2 * Pool::get().threads());
        groups_.assign(1, 0);
        size_t seen = 0;
        for (size_t i = 0; i < items_.size(); ++i) {
            seen += items_[i].count;
            if (seen * wanted >= splat_count_ * groups_.size() && seen > 0) groups_.push_back((int)i + 1);
        }
        groups_.back() = (int)items_.size();
        if (groups_.size() == 1 && !items_.empty()) groups_.push_back((int)items_.size());
    }

    // Counts the visits of each tile, and cuts the image so that each range of tiles keeps to the budget.
    void plan() {
        group();
        const int last = grid_.tiles();
        total_ = count(0, last);
        cuts_.assign(1, 0);
        const int64_t room = std::max<int64_t>(budget_ / visit_nbytes(), 1);
        int64_t held = 0;
        for (int t = 0; t < last; ++t) {
            const int64_t n = starts_[t + 1] - starts_[t];
            if (held > 0 && held + n > room) {
                cuts_.push_back(t);
                held = 0;
            }
            held += n;
        }
        cuts_.push_back(last);
        counted_first_ = 0, counted_last_ = last;
        states_.reserve(last);
    }

    // Visits of each tile and group; starts_ becomes the place of each tile's first visit, slots_ of each group's first.
    int64_t count(int first, int last) {
        const int tiles = last - first, groups = (int)groups_.size() - 1;
        counts_.reserve((size_t)tiles * std::max(groups, 1));
        slots_.assign(groups + 1, 0);
        Pool::get().run(groups, [&](int gr, int) {
            uint32_t* counts = &counts_[(size_t)gr * tiles];
            std::memset(counts, 0, tiles * sizeof(uint32_t));
            int64_t sum = 0;
            for (int i = groups_[gr]; i < groups_[gr + 1]; ++i)
                for (uint32_t s = items_[i].first; s < items_[i].first + items_[i].count; ++s) {
                    uint32_t n = 0, only = 0;
                    grid_.touched(splats_[s], first, last, [&](int tile) { ++n, only = tile, ++counts[tile - first]; });
                    splats_[s].count = n;
                    splats_[s].first = only;  // the tile of a splat that has one, for `bin`
                    sum += n;
                }
            slots_[gr + 1] = sum;
        }, "count");
        for (int gr = 0; gr < groups; ++gr) slots_[gr + 1] += slots_[gr];
        starts_.assign(tiles + 1, 0);
        int64_t at = 0;
        for (int t = 0; t < tiles; ++t) {
            starts_[t] = at;
            for (int gr = 0; gr < groups; ++gr) {
                uint32_t& c = counts_[(size_t)gr * tiles + t];
                const uint32_t n = c;
                c = (uint32_t)(at - starts_[t]);
                at += n;
            }
        }
        starts_[tiles] = at;
        return at;
    }

    // Lists the visits of each tile of a range, in the order of (block, row); slots of a splat ascend with its tiles.
    void bin(int first, int last) {
        if (counted_first_ != first || counted_last_ != last) {
            count(first, last);
            counted_first_ = first, counted_last_ = last;
        }
        const int tiles = last - first, groups = (int)groups_.size() - 1;
        visits_.reserve(std::max<int64_t>(starts_[tiles], 1));
        partials_.reserve(std::max<int64_t>(starts_[tiles], 1));
        live_.reserve(std::max<int64_t>(starts_[tiles], 1));
        if (cam_.absgrad) abs_partials_.reserve(std::max<int64_t>(starts_[tiles], 1));
        Pool::get().run(groups, [&](int gr, int) {
            uint32_t* counts = &counts_[(size_t)gr * tiles];
            std::vector<int> touched;
            uint32_t slot = (uint32_t)slots_[gr];
            std::memset(&live_[slot], 0, slots_[gr + 1] - slots_[gr]);
            for (int i = groups_[gr]; i < groups_[gr + 1]; ++i)
                for (uint32_t s = items_[i].first; s < items_[i].first + items_[i].count; ++s) {
                    Splat& splat = splats_[s];
                    if (!splat.count) continue;
                    touched.assign(1, (int)splat.first);
                    if (splat.count > 1) {
                        touched.clear();
                        grid_.touched(splat, first, last, [&](int tile) { touched.push_back(tile); });
                        std::sort(touched.begin(), touched.end());
                    }
                    splat.first = slot;
                    uint32_t key;
                    std::memcpy(&key, &splat.depth, sizeof key);
                    for (int tile : touched) {
                        Visit& v = visits_[starts_[tile - first] + counts[tile - first]++];
                        v.key = key, v.splat = s, v.slot = slot++;
                    }
                }
        }, "bin");
        counted_first_ = counted_last_ = -1;  // the counts are used up
    }

    void blend(int first, int last, const Image* image) {
        const bool depth = image && image->depth;
        Pool::get().run_together(last - first, [&](int i, int) {
            thread_local DepthSort order;
            const int tile = first + i, n = (int)(starts_[i + 1] - starts_[i]);
            Visit* visits = &visits_[starts_[i]];
            order.sort(visits, n);
            TileState& state = states_[tile];
            if (depth)
                tile_forward<true>(splats_.data(), visits, n, place(tile), cam_.background, state, image);
            else
                tile_forward<false>(splats_.data(), visits, n, place(tile), cam_.background, state, image);
        }, "blend");
    }
    TilePlace place(int tile) const {
        const int x0 = grid_.x0(tile), y0 = grid_.y0(tile);
        return {x0, y0, cam_.width - x0, cam_.height - y0, (size_t)cam_.width};
    }

    void differentiate(int first, int last, const ImageGrad& grad) {
        const auto backward = grad.depth ? cam_.absgrad ? tile_backward<true, true> : tile_backward<true, false>
                              : cam_.absgrad ? tile_backward<false, true> : tile_backward<false, false>;
        Pool::get().run_together(last - first, [&](int i, int) {
            backward(splats_.data(), &visits_[starts_[i]], place(first + i), cam_.background, states_[first + i], grad,
                     partials_.data(), abs_partials_.data(), live_.data());
        }, "differentiate");
    }

    // Adds the partial gradients of a splat's tiles to `sum`, in Morton order.
    void fold(const Splat& splat, float* sum) const {
        for (uint32_t k = splat.first; k < splat.first + splat.count; ++k) {
            if (!live_[k]) continue;
            const float* p = reinterpret_cast<const float*>(&partials_[k]);
            for (int c = 0; c < PARTIALS; ++c) sum[c] += p[c];
        }
    }
    void fold_abs(const Splat& splat, AbsPartial& sum) const {
        for (uint32_t k = splat.first; k < splat.first + splat.count; ++k)
            if (live_[k]) sum.x += abs_partials_[k].x, sum.y += abs_partials_[k].y;
    }
    void fold_range(bool first) {
        sums_.reserve(std::max<size_t>(splat_count_, 1) * PARTIALS);
        if (cam_.absgrad) abs_sums_.reserve(std::max<size_t>(splat_count_, 1));
        Pool::get().run_together((int)items_.size(), [&](int i, int) {
            for (uint32_t s = items_[i].first; s < items_[i].first + items_[i].count; ++s) {
                float* sum = &sums_[(size_t)s * PARTIALS];
                if (first) std::fill(sum, sum + PARTIALS, 0.0f);
                fold(splats_[s], sum);
                if (!cam_.absgrad) continue;
                if (first) abs_sums_[s] = {};
                fold_abs(splats_[s], abs_sums_[s]);
            }
        }, "fold");
    }

    // Image-space gradients of an item's rows.
    void gather(const Item& item, ItemGrad& grad) const {
        std::memset(grad.v, 0, sizeof grad.v);
        for (uint32_t s = item.first; s < item.first + item.count; ++s) {
            const Splat& splat = splats_[s];
            float own[PARTIALS] = {};
            if (whole()) fold(splat, own);
            const float* sum = whole() ? own : &sums_[(size_t)s * PARTIALS];
            for (int c = 0; c < PARTIALS; ++c) grad.v[c][splat.row] = sum[c];
            const float rgb[3] = {splat.r, splat.g, splat.bl};
            for (int c = 0; c < 3; ++c)
                if (!(rgb[c] > 0.0f)) grad.v[6 + c][splat.row] = 0.0f;  // the colour was clamped
            if (!cam_.absgrad) continue;
            AbsPartial absolute{};
            if (whole()) fold_abs(splat, absolute);
            if (!whole()) absolute = abs_sums_[s];
            grad.abs[0][splat.row] = absolute.x, grad.abs[1][splat.row] = absolute.y;
        }
    }
    void update(int from, int to, Blocks blocks, const uint8_t* flags, const Adam& adam, const Updates& out) {
        updates_.resize(to - from);
        Pool::get().run_together(to - from, [&](int i, int) {
            const Item& item = items_[from + i];
            ItemGrad grad;
            gather(item, grad);
            ItemUpdater(layout_, blocks, flags, cam_, adam, item, out.pose != nullptr).run(grad, updates_[i]);
        }, "update");
        merge(from, blocks.n, out);
    }

    void merge(int from, int blocks, const Updates& out) const {
        std::vector<RowBounds> bounds(blocks);
        for (int b = 0; b < blocks; ++b) out.visible[b] = 0, out.touched[b] = 0;
        if (out.pose) std::fill(out.pose, out.pose + 12 * (size_t)blocks, 0.0);
        for (size_t i = 0; i < updates_.size(); ++i) {
            const int b = items_[from + i].block;
            bounds[b].join(updates_[i].bounds);
            out.visible[b] += updates_[i].visible;
            out.touched[b] |= updates_[i].touched;
            if (!out.pose) continue;
            for (int c = 0; c < 12; ++c) out.pose[12 * b + c] += updates_[i].pose[c];
        }
        for (int b = 0; b < blocks; ++b) bounds[b].write(out.lo + 3 * b, out.hi + 3 * b, out.extent + b);
    }

    const Layout layout_;
    const int64_t budget_;
    Camera cam_{};
    Grid grid_;
    std::vector<Item> items_;
    std::vector<ItemUpdate> updates_;
    std::vector<int> groups_, cuts_, parts_;
    std::vector<int64_t> starts_, slots_;
    Scratch<uint32_t> counts_;
    Scratch<Splat> splats_;
    Scratch<Visit> visits_;
    Scratch<Partial> partials_;
    Scratch<AbsPartial> abs_partials_, abs_sums_;  // used where the camera asks for them
    Scratch<uint8_t> live_;
    Scratch<TileState> states_;
    Scratch<float> sums_;
    uint64_t splat_count_ = 0;
    int64_t total_ = 0;
    int counted_first_ = -1, counted_last_ = -1;
};

}  // namespace tidegs
