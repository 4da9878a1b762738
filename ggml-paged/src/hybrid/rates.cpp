// Measured rates of the lanes, steady enough to plan with.
#include <cmath>

#include "hybrid.h"

namespace kvp {

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

rate_meter::rate_meter(double prior) : prior_(0), ns_per_byte_(0), shown_(0) {
    if (prior > 0) {
        prior_       = clamp(prior, rate_min, rate_max);
        ns_per_byte_ = 1e9 / prior_;
        shown_       = prior_;
    }
}

double rate_meter::mean() const {
    return prior_ > 0 ? 1e9 / ns_per_byte_ : 0;
}

void rate_meter::show() {
    const double now = clamp(mean(), rate_min, rate_max);
    if (now > shown_ * (1 + band) || now < shown_ / (1 + band)) {
        shown_ = now;
    }
}

void rate_meter::add(uint64_t bytes, uint64_t ns) {
    if (prior_ == 0 || bytes == 0 || ns == 0) {
        return;
    }
    // One absurd sample (a stopped process, a clock step) must not decide the next plans.
    const double sample = clamp((double) ns / (double) bytes, ns_per_byte_ / jump, ns_per_byte_ * jump);
    ns_per_byte_ = clamp(ns_per_byte_ + weight * (sample - ns_per_byte_), 1e9 / rate_max, 1e9 / rate_min);
    show();
}

void rate_meter::rest() {
    if (prior_ == 0) {
        return;
    }
    ns_per_byte_ += drift * (1e9 / prior_ - ns_per_byte_);
    show();
}

uint32_t lane_meters::bucket(uint32_t rows_per_kv_head) {
    uint32_t b = 0;
    while (rows_per_kv_head > 1 && b + 1 < buckets) {
        rows_per_kv_head = (rows_per_kv_head + 1) / 2;
        b++;
    }
    return b;
}

lane_meters::lane_meters(const priors & p)
    : copy_ns_(p.copy_ns), launch_ns_(p.launch_ns), link_(p.h2d), disk_(p.disk) {
    for (uint32_t b = 0; b < buckets; b++) {
        const double rows = std::ldexp(1.0, (int) b);
        device_[b] = rate_meter(p.device / (rows > p.device_rows ? rows / p.device_rows : 1));
        cpu_[b]    = rate_meter(p.cpu / (rows > p.cpu_rows ? rows / p.cpu_rows : 1));
    }
}

lane_rates lane_meters::rates(uint32_t rows_per_kv_head) const {
    const uint32_t b = bucket(rows_per_kv_head);
    return lane_rates{link_.rate(), device_[b].rate(), cpu_[b].rate(), disk_.rate(), copy_ns_, launch_ns_};
}

static void add_or_rest(rate_meter & meter, const lane_sample & sample) {
    if (sample.ns > 0 && sample.bytes > 0) {
        meter.add(sample.bytes, sample.ns);
    } else {
        meter.rest();
    }
}

void lane_meters::update(uint32_t rows_per_kv_head, const hybrid_measured & measured) {
    const uint32_t b = bucket(rows_per_kv_head);
    add_or_rest(link_, measured.link);
    add_or_rest(device_[b], measured.device);
    add_or_rest(cpu_[b], measured.cpu);
    // The disk has no alternative: without a sample nothing is to be tried again.
    disk_.add(measured.disk.bytes, measured.disk.ns);
}

}  // namespace kvp
