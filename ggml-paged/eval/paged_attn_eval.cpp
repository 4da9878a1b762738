// paged_attn_eval computes one attention call with paged attention, for checks from
// outside: a case comes in, its result goes out, and how to compare is the caller's.
//
//   paged_attn_eval [--threads N] [--spill DIR] [FILE]
//
// reads a case from FILE, or from standard input, and writes the result to standard
// output: f32 [n_q][heads][dv]. Everything is little-endian. A case is one line with a
// JSON object, ended by a newline, then arrays without anything between or after them.
//
// The object has exactly these fields:
//
//   tokens       cells of K and V, 0 to 16777216
//   n_q          queries, 1 to 65536
//   heads        query heads, a multiple of kv_heads
//   kv_heads     heads of K and V
//   dk, dv       elements of a row of K (and of a query), of V (and of the result)
//   type_k       "f16", "q8_0" or "q4_0" (see kv_types.h)
//   type_v       the same
//   scale        factor of <q, k>
//   softcap      s = softcap * tanh(s / softcap); 0: none
//   alibi        largest ALiBi bias (ggml's max_bias); 0: none
//   causal       true, or false: every query also sees later positions
//   window       cells before q_pos - window are not seen; 0: none
//   chunk        cells before the chunk of q_pos are not seen; 0: none
//   sinks        whether the last array is there
//   page_tokens  cells of a page, a power of two from 16 to 65536
//   ram_pages    pages that fit in memory; fewer than the case has: the rest is spilled
//   backend      "cpu", "cuda", or the CUDA kernels on the CPU: "emulated", or "tensor" with emulated
//                tensor cores
//
// The arrays:
//
//   queries           f32 [n_q][heads][dk]
//   K                 type_k [tokens][kv_heads][dk]
//   V                 type_v [tokens][kv_heads][dv]
//   query positions   i32 [n_q]
//   query sequences   i32 [n_q], each 0 to 63
//   cell positions    i32 [tokens]
//   cell sequences    u64 [tokens], bit s: the cell belongs to sequence s; 0: unused
//   sinks             f32 [heads]
//
// paged_attn.h says which cells a query sees and defines the result.
//
// The spilled pages go to an unnamed file in DIR (default: the working directory), which
// must be on a disk. Exit status: 0; 1 when the computation failed; 2 for a bad case or
// bad arguments. Both come with a sentence on standard error and nothing on standard
// output.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "case.h"
#include "forward.h"

namespace {

struct arguments {
    uint32_t     threads = 2;
    std::string  spill   = ".";
    const char * file    = nullptr;
};

uint32_t parse_threads(const char * text) {
    char * end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || n < 1 || n > 256) {
        throw bad_input(std::string("--threads is \"") + text + "\"; it must be a number from 1 to 256.");
    }
    return uint32_t(n);
}

arguments parse_arguments(int argc, char ** argv) {
    arguments args;
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        if (arg == "--threads" || arg == "--spill") {
            if (i + 1 == argc) {
                throw bad_input(arg + " needs a value.");
            }
            const char * value = argv[++i];
            if (arg == "--threads") {
                args.threads = parse_threads(value);
            } else {
                args.spill = value;
            }
        } else if (arg.size() > 1 && arg[0] == '-') {
            throw bad_input("The option " + arg + " is not known; the usage is: paged_attn_eval [--threads N] [--spill DIR] [FILE].");
        } else if (args.file) {
            throw bad_input(std::string("Two files are named, ") + args.file + " and " + arg + "; one case is read.");
        } else {
            args.file = argv[i];
        }
    }
    return args;
}

eval_case read_input(const arguments & args) {
    if (!args.file || std::strcmp(args.file, "-") == 0) {
        return read_case(stdin);
    }
    FILE * in = std::fopen(args.file, "rb");
    if (!in) {
        throw bad_input(std::string("Opening the case ") + args.file + " failed: " + std::strerror(errno) + ".");
    }
    struct closer {
        FILE * file;
        ~closer() { std::fclose(file); }
    } guard{in};
    return read_case(in);
}

void write_output(const std::vector<float> & out) {
    if (std::fwrite(out.data(), sizeof(float), out.size(), stdout) != out.size() || std::fflush(stdout) != 0) {
        throw std::runtime_error(std::string("Writing the result to standard output failed: ") + std::strerror(errno) + ".");
    }
}

// report prints a sentence; those that quote the library's end without a full stop.
int report(const std::exception & e, int status) {
    const std::string sentence = e.what();
    const char * stop = !sentence.empty() && sentence.back() == '.' ? "" : ".";
    std::fprintf(stderr, "paged_attn_eval: %s%s\n", sentence.c_str(), stop);
    return status;
}

}  // namespace

int main(int argc, char ** argv) {
    try {
        const arguments args = parse_arguments(argc, argv);
        const eval_case c = read_input(args);
        write_output(forward(c, args.threads, args.spill));
        return 0;
    } catch (const bad_input & e) {
        return report(e, 2);
    } catch (const std::exception & e) {
        return report(e, 1);
    }
}
