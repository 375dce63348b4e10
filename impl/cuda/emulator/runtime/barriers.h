// Barriers of some of a block's threads (bar.sync and bar.arrive with a number and a count).
#pragma once

#include <vector>

#include "races.h"

struct Thread;

class NamedBarrier {
public:
    // The current thread has come; with `wait` it stays until `expected` have.
    void arrive(int expected, bool wait, const void* code);

private:
    int arrived_ = 0, expected_ = 0;
    Clock clock_;
    std::vector<Thread*> waiting_;
};
