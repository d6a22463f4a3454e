// congestion/window/nscc.py in C: the reference for the compiled policy's speed (bench/policy.py).
// It has the same arithmetic in the same order, without checks.
#include <stdint.h>

struct event {
  int64_t now_ns, kind, path, segment_bytes, rtt_ns, rtt_min_ns, srtt_ns, ack_delay_ns, acked_bytes, acked_segments,
      ecn_segments, lost_bytes, lost_segments, inflight_bytes, delivered_bytes, window_bytes, window_bytes_max,
      app_limited, link_bytes_per_s;
  double rand, hint_window_bytes;
};

struct result {
  double window_bytes, pacing_bytes_per_s;
};

struct flow {
  double window_bytes, most_bytes, base_ns, scale, delay_ns, increase, unadjusted_bytes, clear_bytes, achieved_bytes,
      ignore_bytes;
  int64_t adapt_ns, adjust_ns, steady_ns, cut_ns, troubled, timeouts;
};

struct params {
  double link_bytes_per_s;
  int64_t rtt_ns_min;
  double reference_bytes, reference_ns, slowness_max, segments_min, segment_bytes_max, proportional_segments, fair_segments,
      steady_segments, fast_gain, fast_delay_ns, decrease_gain, decrease_max, base_smoothing, smoothing_per_byte,
      unmarked_share, window_multiple, hold_ns, adapt_share, adapt_targets, adjust_segments;
  int64_t timeout_limit;
};

static inline int64_t max_i(int64_t a, int64_t b) { return a > b ? a : b; }
static inline double min_f(double a, double b) { return a < b ? a : b; }
static inline double max_f(double a, double b) { return a > b ? a : b; }

static inline void measure(struct flow* f, const struct params* p, const struct event* e) {
  double least_ns = (double)max_i(e->rtt_min_ns, p->rtt_ns_min);
  if (f->base_ns == 0.0 || e->rtt_min_ns <= 0) f->base_ns = least_ns;
  f->base_ns += p->base_smoothing * (least_ns - f->base_ns);
  double link = e->link_bytes_per_s > 0 ? (double)e->link_bytes_per_s : p->link_bytes_per_s;
  f->scale = link * f->base_ns * 1e-9 / p->reference_bytes;
  f->most_bytes = p->window_multiple * link * (f->base_ns + p->hold_ns) * 1e-9;
}

static inline void answer(struct flow* f, const struct params* p, const struct event* e, struct result* r) {
  double least = p->segments_min * max_f((double)e->segment_bytes, 1.0);
  double most = max_f(min_f(f->most_bytes, (double)e->window_bytes_max), least);
  f->window_bytes = min_f(max_f(f->window_bytes, least), most);
  r->window_bytes = f->window_bytes;
  r->pacing_bytes_per_s = 0.0;
}

static inline int adapted(struct flow* f, const struct params* p, const struct event* e, double delay_ns) {
  if ((double)(e->now_ns - f->adapt_ns) <= f->base_ns + f->base_ns) return 0;
  double quiet_ns = (double)e->srtt_ns > f->base_ns ? (double)e->srtt_ns : f->base_ns;
  if ((double)(e->now_ns - f->cut_ns) <= quiet_ns) return 0;
  int collapsed = f->adapt_ns != 0 && e->app_limited == 0 &&
                  (f->troubled != 0 || delay_ns > p->adapt_targets * f->base_ns) &&
                  f->achieved_bytes < p->adapt_share * f->most_bytes;
  if (collapsed) {
    f->window_bytes = f->achieved_bytes;
    f->cut_ns = e->now_ns;
    f->ignore_bytes = (double)e->inflight_bytes;
    f->increase = 0.0;
  }
  f->achieved_bytes = 0.0;
  f->troubled = 0;
  f->adapt_ns = e->now_ns;
  return collapsed;
}

static inline void weigh(struct flow* f, const struct params* p, const struct event* e, double delay_ns) {
  double acked_bytes = (double)e->acked_bytes;
  double clear_bytes = acked_bytes;
  double sample_ns = delay_ns;
  f->clear_bytes += acked_bytes;
  if (e->ecn_segments > 0) {
    clear_bytes *= 1.0 - min_f((double)e->ecn_segments / (double)max_i(e->acked_segments, 1), 1.0);
  } else if (delay_ns >= f->base_ns) {
    sample_ns = p->unmarked_share * f->base_ns;
  }
  if (e->ecn_segments > 0 || delay_ns >= p->fast_delay_ns) f->clear_bytes = 0.0;
  f->delay_ns += min_f(p->smoothing_per_byte * acked_bytes, 1.0) * (sample_ns - f->delay_ns);
  double span_ns = max_f((double)e->srtt_ns, f->base_ns);
  if (e->ecn_segments > 0 && delay_ns >= f->base_ns && (double)(e->now_ns - f->cut_ns) > span_ns &&
      f->delay_ns > f->base_ns) {
    double excess = p->decrease_gain * (f->delay_ns - f->base_ns) / f->delay_ns;
    f->window_bytes *= 1.0 - min_f(excess, p->decrease_max);
    f->cut_ns = e->now_ns;
  }
  if (e->app_limited != 0) return;
  double gain_bytes = min_f((double)e->segment_bytes, p->segment_bytes_max) * f->scale;
  if (delay_ns >= f->base_ns) {
    f->increase += p->fair_segments * gain_bytes * clear_bytes;
  } else if (f->clear_bytes > f->window_bytes) {
    f->window_bytes += min_f(p->fast_gain * f->scale, 1.0) * clear_bytes;
  } else {
    double room = min_f(f->base_ns / p->reference_ns, p->slowness_max) * (1.0 - delay_ns / f->base_ns);
    f->increase += p->proportional_segments * room * gain_bytes * clear_bytes;
  }
  if ((double)(e->now_ns - f->steady_ns) >= span_ns) {
    f->window_bytes += p->steady_segments * gain_bytes;
    f->steady_ns = e->now_ns;
  }
}

static inline void adjust(struct flow* f, const struct params* p, const struct event* e) {
  f->unadjusted_bytes += (double)e->acked_bytes;
  if (f->unadjusted_bytes >= p->adjust_segments * (double)e->segment_bytes ||
      (double)(e->now_ns - f->adjust_ns) >= f->base_ns) {
    f->window_bytes += f->increase / f->window_bytes;
    f->increase = 0.0;
    f->unadjusted_bytes = 0.0;
    f->adjust_ns = e->now_ns;
  }
}

int32_t reference_start(void* flow, void* shared, int64_t count, const void* params, const void* event, void* result) {
  struct flow* f = flow;
  const struct params* p = params;
  const struct event* e = event;
  (void)shared, (void)count;
  measure(f, p, e);
  f->window_bytes = f->most_bytes;
  if (e->hint_window_bytes > 0.0) f->window_bytes = e->hint_window_bytes;
  answer(f, p, e, result);
  return 0;
}

int32_t reference_ack(void* flow, void* shared, int64_t count, const void* params, const void* event, void* result) {
  struct flow* f = flow;
  const struct params* p = params;
  const struct event* e = event;
  (void)shared, (void)count;
  f->timeouts = 0;
  measure(f, p, e);
  double delay_ns = max_f((double)(e->rtt_ns - e->rtt_min_ns), 0.0);
  f->achieved_bytes += (double)e->acked_bytes;
  int ignored = f->ignore_bytes > 0.0 && e->ecn_segments > 0;
  f->ignore_bytes = max_f(f->ignore_bytes - (double)e->acked_bytes, 0.0);
  if (!ignored && !adapted(f, p, e, delay_ns)) {
    weigh(f, p, e, delay_ns);
    adjust(f, p, e);
  }
  answer(f, p, e, result);
  return 0;
}
