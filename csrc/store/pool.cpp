// See pool.hpp. One mutex is enough: a job is a transfer of many kilobytes.
#include "store/pool.hpp"

#include <algorithm>

namespace tidegs::store {

Pool::Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    ready_.notify_all();
    for (auto& t : threads_) t.join();
}

bool Pool::take(Batch* batch, size_t* index) {
    if (batch->next == batch->n) return false;
    *index = batch->next++;
    if (batch->next == batch->n) batches_.remove(batch);
    return true;
}

void Pool::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        ready_.wait(lock, [this] { return stop_ || !batches_.empty(); });
        if (batches_.empty()) return;
        Batch* batch = batches_.front();
        batches_.splice(batches_.end(), batches_, batches_.begin());  // the next thread serves the next caller
        size_t index;
        if (!take(batch, &index)) continue;
        lock.unlock();
        (*batch->job)(index);
        lock.lock();
        if (++batch->done == batch->n) finished_.notify_all();
    }
}

void Pool::run(size_t n, const std::function<void(size_t)>& job) {
    if (n == 0) return;
    if (n == 1) return job(0);
    Batch batch{&job, n};
    std::unique_lock<std::mutex> lock(mutex_);
    batches_.push_back(&batch);
    for (size_t i = 0; i < std::min(n - 1, threads_.size()); ++i) ready_.notify_one();
    size_t index;
    while (take(&batch, &index)) {
        lock.unlock();
        job(index);
        lock.lock();
        ++batch.done;
    }
    finished_.wait(lock, [&] { return batch.done == batch.n; });
}

}  // namespace tidegs::store
