#include "barriers.h"

#include "block.h"

void NamedBarrier::arrive(int expected, bool wait, const void* code) {
    Thread* self = current_thread();
    Block& block = *self->block;
    if (expected <= 0 || expected % 32 != 0) fail(code, "a named barrier takes whole warps, not %d threads", expected);
    if (arrived_ > 0 && expected != expected_)
        fail(code, "divergence at a named barrier: %d threads expected here, %d elsewhere", expected, expected_);
    expected_ = expected;
    block.races.release(self->id, clock_);
    if (wait) waiting_.push_back(self);
    const bool complete = ++arrived_ == expected;
    if (complete) {
        for (Thread* thread : waiting_) {
            block.races.acquire(thread->id, clock_);
            if (thread != self) block.make_ready(thread);
        }
        *this = {};
    } else if (wait) {
        block.wait("a named barrier", code);
    }
}
