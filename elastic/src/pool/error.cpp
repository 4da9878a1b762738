#include "pool/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "kvc.h"

namespace {
thread_local char last_error[1024];
}

const char * kvc_last_error(void) {
    return last_error;
}

namespace kvc {

int fail(int code, const char * format, ...) {
    // The arguments may contain the last sentence.
    char text[sizeof last_error];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    return code;
}

int fail_more(int code, const char * format, ...) {
    const size_t length = strlen(last_error);
    va_list args;
    va_start(args, format);
    vsnprintf(last_error + length, sizeof last_error - length, format, args);
    va_end(args);
    return code;
}

}  // namespace kvc
