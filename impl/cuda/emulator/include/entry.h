// How the runtime calls a kernel's entry: its parameters by address, as cuLaunchKernel takes them.
#pragma once

struct Launch;
extern "C" void emulated_launch(Launch*, void (*entry)(void**));

namespace emulated {

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
    using Type = Indices<I...>;
};
template <class T>
struct Plain {
    using Type = T;
};
template <class T>
struct Plain<const T> {
    using Type = T;
};

template <class... P, int... I>
__forceinline__ void call(void (*entry)(P...), void** parameters, Indices<I...>) {
    entry(*static_cast<typename Plain<P>::Type*>(parameters[I])...);
}
template <class... P>
__forceinline__ void call(void (*entry)(P...), void** parameters) {
    call(entry, parameters, typename MakeIndices<sizeof...(P)>::Type());
}

template <class>
struct Signature;
template <class... P>
struct Signature<void(P...)> {
    static constexpr int count = sizeof...(P);
    static constexpr int sizes[] = {static_cast<int>(sizeof(P))..., 0};
};

}  // namespace emulated

#define EMULATED_ENTRY(entry)                                                                                 \
    __attribute__((no_sanitize("thread"))) static void emulated_call_entry(void** parameters) {               \
        emulated::call(entry, parameters);                                                                    \
    }                                                                                                         \
    extern "C" int emulated_parameter_count() { return emulated::Signature<decltype(entry)>::count; }         \
    extern "C" int emulated_parameter_bytes(int i) { return emulated::Signature<decltype(entry)>::sizes[i]; } \
    extern "C" void emulated_run(Launch* launch) { emulated_launch(launch, emulated_call_entry); }
