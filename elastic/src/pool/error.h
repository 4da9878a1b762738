// The sentence of a thread's last failed call.
#pragma once

namespace kvc {

// fail notes a sentence for kvc_last_error and returns code.
int fail(int code, const char * format, ...) __attribute__((format(printf, 2, 3)));

// fail_more appends to the sentence of the last failure, and returns code.
int fail_more(int code, const char * format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace kvc
