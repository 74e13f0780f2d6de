// Memory that a pass writes before it reads: grows to the largest pass and stays, so the hot path allocates nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace tidegs {

// An array of T without constructors, aligned to pages. `reserve` throws away what it held. Pages are taken from the
// system when they are first written, so a generous reserve costs addresses, not memory.
template <class T>
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { release(); }

    void reserve(size_t n) { resize(n, 0); }
    // As reserve, but the first `kept` elements stay.
    void extend(size_t n, size_t kept) { resize(n > capacity_ && kept ? 2 * n : n, kept); }
    void release() {
        if (data_) munmap(data_, bytes_);
        data_ = nullptr;
        bytes_ = capacity_ = 0;
    }
    T* data() { return data_; }
    const T* data() const { return data_; }
    T& operator[](size_t i) { return data_[i]; }
    const T& operator[](size_t i) const { return data_[i]; }
    size_t capacity() const { return capacity_; }
    size_t nbytes() const { return bytes_; }

private:
    void resize(size_t n, size_t kept) {
        if (n <= capacity_) return;
        if (!kept) release();
        const size_t bytes = ((n + n / 8) * sizeof(T) + PAGE - 1) / PAGE * PAGE;
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        madvise(p, bytes, MADV_HUGEPAGE);
        if (kept) std::memcpy(p, data_, kept * sizeof(T));
        release();
        data_ = static_cast<T*>(p);
        bytes_ = bytes;
        capacity_ = bytes / sizeof(T);
    }

    static constexpr size_t PAGE = size_t(2) << 20;
    T* data_ = nullptr;
    size_t bytes_ = 0, capacity_ = 0;
};

}  // namespace tidegs
