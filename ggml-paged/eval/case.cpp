#include "case.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "kv_pager.h"

using nlohmann::json;

namespace {

// Limits keep products of sizes far from overflow and a typo from filling the memory.
constexpr int64_t LINE_BYTES_MAX  = 64 << 10;
constexpr int64_t TOKENS_MAX      = 1 << 24;
constexpr int64_t QUERIES_MAX     = 1 << 16;
constexpr int64_t HEADS_MAX       = 1 << 10;
constexpr int64_t HEAD_DIM_MAX    = 1 << 12;
constexpr int64_t RAM_PAGES_MAX   = 1 << 24;
constexpr size_t  ARRAY_BYTES_MAX = size_t(16) << 30;

const char * const FIELDS[] = {
    "tokens", "n_q",  "heads",  "kv_heads", "dk",     "dv",    "type_k", "type_v",      "scale",
    "softcap", "alibi", "causal", "window", "chunk", "sinks", "page_tokens", "ram_pages", "backend",
};

std::string read_line(FILE * in) {
    std::string line;
    for (int c; (c = std::fgetc(in)) != EOF;) {
        if (c == '\n') {
            return line;
        }
        line.push_back(char(c));
        if (int64_t(line.size()) > LINE_BYTES_MAX) {
            throw bad_input("The first line is longer than " + std::to_string(LINE_BYTES_MAX) +
                            " bytes; it must be one JSON object that ends with a newline.");
        }
    }
    throw bad_input(line.empty() ? "The input is empty; it must begin with a JSON object on one line."
                                 : "The input ends within its first line, which must end with a newline.");
}

json parse_header(const std::string & line) {
    json header = json::parse(line, nullptr, false);
    if (header.is_discarded() || !header.is_object()) {
        throw bad_input("The first line is not a JSON object.");
    }
    for (const char * name : FIELDS) {
        if (!header.contains(name)) {
            throw bad_input(std::string("The JSON object lacks the field \"") + name + "\".");
        }
    }
    for (const auto & item : header.items()) {
        if (std::find(std::begin(FIELDS), std::end(FIELDS), item.key()) == std::end(FIELDS)) {
            throw bad_input("The JSON object has a field \"" + item.key() + "\", which is not known.");
        }
    }
    return header;
}

int64_t integer(const json & header, const char * name, int64_t low, int64_t high) {
    const json & value = header[name];
    const std::string range = std::to_string(low) + " to " + std::to_string(high);
    if (!value.is_number_integer()) {
        throw bad_input(std::string("The field \"") + name + "\" must be an integer from " + range + ".");
    }
    // An unsigned value past INT64_MAX would come out negative.
    const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
    const int64_t n = huge ? INT64_MAX : value.get<int64_t>();
    if (n < low || n > high) {
        throw bad_input(std::string("The field \"") + name + "\" is " + value.dump() + "; it must be from " + range + ".");
    }
    return n;
}

float number(const json & header, const char * name) {
    const json & value = header[name];
    const double x = value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
    if (!(std::fabs(x) <= double(std::numeric_limits<float>::max()))) {
        throw bad_input(std::string("The field \"") + name + "\" must be a number that a 32-bit float holds.");
    }
    return float(x);
}

bool boolean(const json & header, const char * name) {
    if (!header[name].is_boolean()) {
        throw bad_input(std::string("The field \"") + name + "\" must be true or false.");
    }
    return header[name].get<bool>();
}

std::string text(const json & header, const char * name) {
    if (!header[name].is_string()) {
        throw bad_input(std::string("The field \"") + name + "\" must be a string.");
    }
    return header[name].get<std::string>();
}

int type_of(const json & header, const char * name) {
    const std::string wanted = text(header, name);
    for (int type : {int(KVP_F16), int(KVP_Q8_0), int(KVP_Q4_0)}) {
        if (wanted == kvp_type_name(type)) {
            return type;
        }
    }
    throw bad_input(std::string("The field \"") + name + "\" is \"" + wanted + "\"; it must be \"f16\", \"q8_0\" or \"q4_0\".");
}

void check_rows(const char * what, int type, uint32_t dim) {
    if (kvp_row_bytes(type, dim) == 0) {
        throw bad_input(std::string("A row of ") + what + " has " + std::to_string(dim) +
                        " elements, which do not fill blocks of " + kvp_type_name(type) + ".");
    }
}

eval_case checked_header(const json & h) {
    eval_case c;
    c.tokens      = uint32_t(integer(h, "tokens", 0, TOKENS_MAX));
    c.n_q         = uint32_t(integer(h, "n_q", 1, QUERIES_MAX));
    c.heads       = uint32_t(integer(h, "heads", 1, HEADS_MAX));
    c.kv_heads    = uint32_t(integer(h, "kv_heads", 1, HEADS_MAX));
    c.dk          = uint32_t(integer(h, "dk", 1, HEAD_DIM_MAX));
    c.dv          = uint32_t(integer(h, "dv", 1, HEAD_DIM_MAX));
    c.type_k      = type_of(h, "type_k");
    c.type_v      = type_of(h, "type_v");
    c.scale       = number(h, "scale");
    c.softcap     = number(h, "softcap");
    c.alibi       = number(h, "alibi");
    c.causal      = boolean(h, "causal");
    c.sinks       = boolean(h, "sinks");
    c.window      = int32_t(integer(h, "window", 0, INT32_MAX));
    c.chunk       = int32_t(integer(h, "chunk", 0, INT32_MAX));
    c.page_tokens = uint32_t(integer(h, "page_tokens", KVP_PAGE_CELLS_MIN, KVP_PAGE_CELLS_MAX));
    c.ram_pages   = uint32_t(integer(h, "ram_pages", 1, RAM_PAGES_MAX));
    c.backend     = text(h, "backend");
    if (c.heads % c.kv_heads != 0) {
        throw bad_input("\"heads\" (" + std::to_string(c.heads) + ") must be a multiple of \"kv_heads\" (" +
                        std::to_string(c.kv_heads) + ").");
    }
    if ((c.page_tokens & (c.page_tokens - 1)) != 0) {
        throw bad_input("\"page_tokens\" (" + std::to_string(c.page_tokens) + ") must be a power of two.");
    }
    if (c.softcap < 0 || c.alibi < 0) {
        throw bad_input("\"softcap\" and \"alibi\" must not be negative; 0 turns them off.");
    }
    check_rows("K", c.type_k, c.dk);
    check_rows("V", c.type_v, c.dv);
    const size_t arrays = c.tokens * (c.row_k_bytes() + c.row_v_bytes() + 12) +
                          size_t(c.n_q) * c.heads * (c.dk + c.dv) * sizeof(float);
    if (arrays > ARRAY_BYTES_MAX) {
        throw bad_input("The arrays of this case have " + std::to_string(arrays) + " bytes; at most " +
                        std::to_string(ARRAY_BYTES_MAX) + " are accepted. Use fewer tokens, queries or heads.");
    }
    return c;
}

// read_array grows with the bytes that arrive, so that a short input with a header that
// promises much costs little memory.
template <typename T>
std::vector<T> read_array(FILE * in, const char * what, size_t n) {
    constexpr size_t step = (size_t(16) << 20) / sizeof(T);
    std::vector<T> out;
    while (out.size() < n) {
        const size_t have = out.size(), want = std::min(step, n - have);
        out.resize(have + want);
        const size_t got = std::fread(out.data() + have, sizeof(T), want, in);
        if (got == want) {
            continue;
        }
        if (std::ferror(in)) {
            throw bad_input(std::string("Reading ") + what + " failed: " + std::strerror(errno) + ".");
        }
        throw bad_input(std::string("The input ends within ") + what + ": " + std::to_string(have + got) + " of " +
                        std::to_string(n) + " elements of " + std::to_string(sizeof(T)) + " bytes are there.");
    }
    return out;
}

}  // namespace

size_t eval_case::row_k_bytes() const { return kv_heads * kvp_row_bytes(type_k, dk); }
size_t eval_case::row_v_bytes() const { return kv_heads * kvp_row_bytes(type_v, dv); }

size_t eval_case::page_bytes() const {
    const auto aligned = [](size_t n) { return (n + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN; };
    return aligned(page_tokens * row_k_bytes()) + aligned(page_tokens * row_v_bytes());
}

uint32_t eval_case::pages() const { return std::max(1u, (tokens + page_tokens - 1) / page_tokens); }

eval_case read_case(FILE * in) {
    eval_case c = checked_header(parse_header(read_line(in)));
    c.q     = read_array<float>(in, "the queries", size_t(c.n_q) * c.heads * c.dk);
    c.k     = read_array<uint8_t>(in, "K", c.tokens * c.row_k_bytes());
    c.v     = read_array<uint8_t>(in, "V", c.tokens * c.row_v_bytes());
    c.q_pos = read_array<int32_t>(in, "the query positions", c.n_q);
    c.q_seq = read_array<uint32_t>(in, "the query sequences", c.n_q);
    c.pos   = read_array<int32_t>(in, "the cell positions", c.tokens);
    c.seqs  = read_array<uint64_t>(in, "the cell sequences", c.tokens);
    if (c.sinks) {
        c.sink_scores = read_array<float>(in, "the sinks", c.heads);
    }
    if (std::fgetc(in) != EOF) {
        throw bad_input("There are bytes after the last array of this case; the sizes in its first line do not fit its arrays.");
    }
    for (size_t i = 0; i < c.q_seq.size(); i++) {
        if (c.q_seq[i] >= KVP_MAX_SEQUENCES) {
            throw bad_input("The sequence of query " + std::to_string(i) + " is " + std::to_string(int32_t(c.q_seq[i])) +
                            "; it must be from 0 to " + std::to_string(KVP_MAX_SEQUENCES - 1) + ".");
        }
    }
    return c;
}
