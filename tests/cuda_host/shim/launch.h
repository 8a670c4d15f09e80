// How a kernel is called from outside: SHIM_KERNEL(name) exports `shim_launch_name` and `shim_parameters_name`.
#pragma once
#include <type_traits>
#include <utility>

#include "cuda_host.h"

namespace shim {

struct Parameter {  // as build.py reads it
    char kind;  // i, u: integers; f; b: bool; p: pointer; v: anything else; 0: no more
    char pointee;  // kind of what a pointer points to
    bool is_constant;  // a pointer to const
    int size;  // bytes; of a pointer: of what it points to
    int alignment;  // that a pointer needs
};

template <class T>
constexpr char kind() {
    if (std::is_same<T, bool>::value) return 'b';
    if (std::is_floating_point<T>::value) return 'f';
    if (!std::is_integral<T>::value) return 'v';
    return std::is_signed<T>::value ? 'i' : 'u';
}
template <class T>
struct Described {
    static constexpr Parameter value{kind<T>(), 0, false, sizeof(T), alignof(T)};
};
template <class T>
struct Described<T*> {
    typedef typename std::remove_cv<T>::type Pointee;
    static constexpr Parameter value{'p', kind<Pointee>(), std::is_const<T>::value, sizeof(Pointee), alignof(Pointee)};
};
template <>
struct Described<void*> {
    static constexpr Parameter value{'p', 'v', false, 1, 1};
};
template <>
struct Described<const void*> {
    static constexpr Parameter value{'p', 'v', true, 1, 1};
};

template <class... A>
inline const Parameter* parameters(void (*)(A...)) {
    static constexpr Parameter all[] = {Described<typename std::remove_cv<A>::type>::value..., {}};
    return all;
}

template <class... A>
struct Call {
    void (*kernel)(A...);
    void** arguments;
    static void run(void* self) { static_cast<Call*>(self)->with(std::index_sequence_for<A...>()); }
    template <size_t... i>
    void with(std::index_sequence<i...>) {
        kernel(*static_cast<typename std::remove_reference<A>::type*>(arguments[i])...);
    }
};
template <class... A>
inline int launch(void (*kernel)(A...), Request* request) {
    Call<A...> call{kernel, request->arguments};
    return launch(request, Call<A...>::run, &call);
}

}  // namespace shim

#define SHIM_EXPORTED extern "C" __attribute__((visibility("default")))
#define SHIM_KERNEL(name)                                                                                   \
    SHIM_EXPORTED int shim_launch_##name(shim::Request* request) { return shim::launch(name, request); }     \
    SHIM_EXPORTED const shim::Parameter* shim_parameters_##name() { return shim::parameters(name); }
