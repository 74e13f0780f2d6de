// The most fused multiply-adds that this machine does in a second, for benchmarks to compare with.
#include "core/api.hpp"
#include "core/pool.hpp"
#include "core/simd.hpp"

namespace tidegs {

// Ten chains, enough to hide the latency of two units.
inline void fma_chains(int rounds) {
    vf x[10];
    for (int i = 0; i < 10; ++i) x[i] = set1(0.5f + i);
    const vf a = set1(0.999f), b = set1(1e-3f);
    for (int r = 0; r < rounds; ++r) {
        for (int i = 0; i < 10; ++i) x[i] = fma(x[i], a, b);
        asm volatile("" ::: "memory");
    }
    float s = 0;
    for (int i = 0; i < 10; ++i) s += sum(x[i]);
    asm volatile("" : : "r"(s));
}

}  // namespace tidegs

// Multiply-adds a second over all threads: the best of `tries` runs.
TIDEGS_API double tidegs_fma_peak(int tries) {
    constexpr int rounds = 200000;
    const int threads = tidegs::Pool::get().threads();
    double best = 0;
    for (int i = 0; i < tries; ++i) {
        const int64_t begin = tidegs::now_ns();
        tidegs::Pool::get().run(threads, [&](int, int) { tidegs::fma_chains(rounds); });
        const double seconds = 1e-9 * double(tidegs::now_ns() - begin);
        best = std::max(best, double(threads) * rounds * 10 * tidegs::W / seconds);
    }
    return best;
}
