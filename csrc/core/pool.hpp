// Threads that wait for work. Invariant: items write distinct outputs, so results do not depend on who runs which item.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/denormals.hpp"
#include "core/trace.hpp"

namespace tidegs {

class Pool {
public:
    // The pool of this library; never destroyed, since a process may exit while its threads wait.
    static Pool& get() {
        static Pool* pool = new Pool;
        return *pool;
    }

    int threads() const { return wanted_; }
    void set_threads(int n) {
        std::lock_guard<std::mutex> one(caller_);
        stop();
        wanted_ = n < 1 ? 1 : n;
    }

    // Calls f(item, thread) for each item of [0, n), in any order, on all threads; returns when all are done. Throws the
    // first exception of an item. Calls from several threads take turns; f must not call `run`. `stage` names the work
    // in traces. Nobody waits for a thread that the system does not run: it finds the items taken.
    template <class F>
    void run(int n, F&& f, const char* stage = "kernel") {
        if (n <= 0) return;
        std::lock_guard<std::mutex> one(caller_);
        const DenormalsAreZero flush;
        Call call = [](void* context, int item, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(item, thread); };
        if (wanted_ == 1 || n == 1) {
            const Start start = Trace::get().begin();
            for (int i = 0; i < n; ++i) call(&f, i, 0);
            Trace::get().end(stage, 0, start);
            return;
        }
        start();
        error_ = nullptr;
        const uint64_t round = ticket_.load(std::memory_order_relaxed) / ROUND + 2;
        ticket_.store(round * ROUND - 1, std::memory_order_release);  // no items while the next four change
        call_.store(call, std::memory_order_release);
        context_.store(&f, std::memory_order_release);
        stage_.store(stage, std::memory_order_release);
        count_.store(n, std::memory_order_release);
        done_.store(0, std::memory_order_release);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            ticket_.store(round * ROUND, std::memory_order_release);
        }
        wake_.notify_all();
        work(round, 0);
        for (int spin = 0; done_.load(std::memory_order_acquire) < n; ++spin)
            if (spin > SPINS) std::this_thread::yield();
        if (error_) std::rethrow_exception(error_);
    }

    // The same, with several items in a row on one thread, for items whose outputs are neighbours in memory: threads that
    // write into one cache line, or fetch ahead what the other one writes, hinder each other.
    template <class F>
    void run_together(int n, F&& f, const char* stage) {
        const int size = std::min(TOGETHER, std::max(1, n / (PARTS_EACH * wanted_)));
        run((n + size - 1) / size, [&](int part, int thread) {
            for (int i = part * size; i < std::min(n, (part + 1) * size); ++i) f(i, thread);
        }, stage);
    }

private:
    static constexpr int TOGETHER = 16, PARTS_EACH = 8;  // parts for each thread, so that all are busy to the end
    using Call = void (*)(void*, int, int);
    static constexpr int SPINS = 4000;  // some ten microseconds, less than a sleep and a wake
    static constexpr uint64_t ROUND = uint64_t(1) << 32;

    void start() {
        if (!team_.empty() && owner_ == getpid()) return;
        if (!team_.empty()) {  // a fork: the threads stayed with the parent
            new std::vector<std::thread>(std::move(team_));
            team_.clear();
        }
        owner_ = getpid();
        quit_ = false;
        const uint64_t seen = ticket_.load() / ROUND;
        for (int i = 1; i < wanted_; ++i) team_.emplace_back([this, i, seen] { serve(i, seen); });
    }
    void stop() {
        if (!team_.empty() && owner_ == getpid()) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                quit_ = true;
                ticket_.store((ticket_.load() / ROUND + 2) * ROUND - 1, std::memory_order_release);
            }
            wake_.notify_all();
            for (auto& t : team_) t.join();
        }
        team_.clear();
    }
    void serve(int thread, uint64_t seen) {
        const DenormalsAreZero flush;
        for (;;) {
            for (int spin = 0; spin < SPINS && ticket_.load(std::memory_order_acquire) / ROUND == seen; ++spin) {
            }
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return ticket_.load(std::memory_order_acquire) / ROUND != seen; });
                if (quit_) return;
            }
            seen = ticket_.load(std::memory_order_acquire) / ROUND;
            work(seen, thread);
        }
    }
    // Takes items of a round while there are any. The ticket names round and item, and leaves the round before the next
    // one's call is written; so whoever succeeds to take an item has read the call that belongs to it.
    void work(uint64_t round, int thread) {
        const Call call = call_.load(std::memory_order_acquire);
        void* context = context_.load(std::memory_order_acquire);
        const char* stage = stage_.load(std::memory_order_acquire);
        const uint64_t end = round * ROUND + (uint64_t)count_.load(std::memory_order_acquire);
        int mine = 0;
        Start start;
        uint64_t next = ticket_.load(std::memory_order_acquire);
        while (next / ROUND == round && next < end) {
            if (!ticket_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
            if (mine++ == 0) start = Trace::get().begin();
            try {
                call(context, (int)(next % ROUND), thread);
            } catch (...) {
                std::lock_guard<std::mutex> lock(mutex_);
                if (!error_) error_ = std::current_exception();
            }
            next = ticket_.load(std::memory_order_acquire);
        }
        if (!mine) return;
        Trace::get().end(stage, thread, start);
        done_.fetch_add(mine, std::memory_order_acq_rel);
    }

    std::mutex caller_, mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> team_;
    std::atomic<uint64_t> ticket_{0};  // round * ROUND + next item
    std::atomic<int> done_{0}, count_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<const char*> stage_{nullptr};
    std::exception_ptr error_;
    int wanted_ = 1;
    pid_t owner_ = 0;
    bool quit_ = false;
};

}  // namespace tidegs
