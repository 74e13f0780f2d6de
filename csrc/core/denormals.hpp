// Denormal floats count as zero while this is alive, on the thread that made it: one of them in a vector costs a hundred
// cycles, and moments that decay towards zero would stay denormal for good.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidegs {

class DenormalsAreZero {
public:
#if defined(__x86_64__)
    DenormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // flush to zero, denormals are zero
    ~DenormalsAreZero() { _mm_setcsr(before_); }

private:
    const uint32_t before_;
#elif defined(__aarch64__)
    DenormalsAreZero() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(before_ | uint64_t(1) << 24));
    }
    ~DenormalsAreZero() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

private:
    uint64_t before_;
#else
    DenormalsAreZero() {}
#endif
    DenormalsAreZero(const DenormalsAreZero&) = delete;
};

}  // namespace tidegs
