// congestion/window/swift.py in C: the reference for the compiled policy's speed (bench/policy.py).
// It has the same arithmetic in the same order, without checks.
#include <math.h>
#include <stdint.h>

struct event {
  int64_t now_ns, kind, path, segment_bytes, rtt_ns, rtt_min_ns, srtt_ns, ack_delay_ns, acked_bytes, acked_segments,
      ecn_segments, lost_bytes, lost_segments, inflight_bytes, delivered_bytes, window_bytes, window_bytes_max,
      app_limited, link_bytes_per_s;
  double rand, hint_window_bytes;
};

struct result {
  double window_bytes, pacing_bytes_per_s, window_segments_min;
};

struct flow {
  double window_bytes, host_window_bytes, scaling_alpha, scaling_beta, round_lost_bytes;
  int64_t round_start_ns, round_queue_ns, last_queue_ns, round_host_ns, last_host_ns, last_rtt_ns, last_cut_ns,
      host_cut_ns, doubling, late_samples, timeouts;
};

struct params {
  int64_t target_queue_ns, target_rtt_ns;
  double target_multiple;
  int64_t host_target_ns;
  double host_target_share;
  double scaling_multiple, scaling_segments_min, scaling_segments_max, increase_segments, decrease_gain, decrease_max,
      loss_tolerance;
  int64_t timeout_limit, long_rtt_ns, target_max_ns, doubling_segments, doubling_samples, doubling_late_ns_min,
      doubling_late_ns_max;
  double growth_share_max, window_segments_min, start_divisor, start_segments;
  int64_t filtered;
  double pacing_gain;
  int64_t pacing_segments_max;
  double pacing_gain_long;
};

static const int64_t no_sample_ns = INT64_C(1) << 62;

static inline int64_t min_i(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i(int64_t a, int64_t b) { return a > b ? a : b; }
static inline double min_f(double a, double b) { return a < b ? a : b; }
static inline double max_f(double a, double b) { return a > b ? a : b; }

static inline void answer(struct flow* f, const struct params* p, const struct event* e, struct result* r) {
  double segment_bytes = max_f((double)e->segment_bytes, 1.0);
  r->window_segments_min = p->window_segments_min;
  double most = max_f((double)e->window_bytes_max, 2.0 * segment_bytes);
  double least = min_f(p->window_segments_min * segment_bytes, most);
  f->window_bytes = min_f(max_f(f->window_bytes, least), most);
  f->host_window_bytes = min_f(max_f(f->host_window_bytes, least), most);
  r->window_bytes = min_f(f->window_bytes, f->host_window_bytes);
  r->pacing_bytes_per_s = 0.0;
  if (e->srtt_ns <= 0) return;
  if (r->window_bytes < (double)p->pacing_segments_max * segment_bytes)
    r->pacing_bytes_per_s = p->pacing_gain * r->window_bytes * 1e9 / (double)e->srtt_ns;
  else if (e->rtt_min_ns >= p->long_rtt_ns)
    r->pacing_bytes_per_s = p->pacing_gain_long * r->window_bytes * 1e9 / (double)e->srtt_ns;
}

int32_t reference_start(void* flow, void* shared, int64_t count, const void* params, const void* event, void* result) {
  struct flow* f = flow;
  const struct params* p = params;
  const struct event* e = event;
  (void)shared, (void)count;
  double low = 1.0 / sqrt(p->scaling_segments_min);
  double high = 1.0 / sqrt(p->scaling_segments_max);
  f->scaling_alpha = p->scaling_multiple / (low - high);
  f->scaling_beta = f->scaling_alpha * high;
  f->round_queue_ns = f->last_queue_ns = f->round_host_ns = f->last_host_ns = no_sample_ns;
  f->window_bytes = (double)e->window_bytes_max / p->start_divisor;
  f->doubling = 0;
  if (p->start_segments > 0.0) f->window_bytes = p->start_segments * max_f((double)e->segment_bytes, 1.0);
  if (e->hint_window_bytes > 0.0) {
    f->window_bytes = e->hint_window_bytes;
  } else if (e->srtt_ns >= p->long_rtt_ns) {
    f->window_bytes = (double)p->doubling_segments * max_f((double)e->segment_bytes, 1.0);
    f->doubling = 1;
  }
  f->host_window_bytes = (double)e->window_bytes_max;
  answer(f, p, e, result);
  return 0;
}

int32_t reference_ack(void* flow, void* shared, int64_t count, const void* params, const void* event, void* result) {
  struct flow* f = flow;
  const struct params* p = params;
  const struct event* e = event;
  (void)shared, (void)count;
  int64_t span_ns = max_i(e->srtt_ns, e->rtt_min_ns);
  f->timeouts = 0;
  if (e->now_ns - f->round_start_ns >= span_ns) {
    f->last_queue_ns = f->round_queue_ns;
    f->last_host_ns = f->round_host_ns;
    f->round_queue_ns = f->round_host_ns = no_sample_ns;
    f->round_lost_bytes = 0.0;
    f->round_start_ns = e->now_ns;
  }
  int64_t sample_ns = -1;
  if (e->rtt_ns > 0) {
    f->last_rtt_ns = e->rtt_ns;
    sample_ns = max_i(e->rtt_ns - (p->target_rtt_ns == 0 ? e->rtt_min_ns : 0), 0);
    f->round_queue_ns = min_i(f->round_queue_ns, sample_ns);
  }
  int64_t cut_span_ns = e->rtt_min_ns >= p->long_rtt_ns ? max_i(span_ns, f->last_rtt_ns + f->last_rtt_ns / 4) : span_ns;
  int64_t queue_ns = min_i(f->round_queue_ns, f->last_queue_ns);
  if (p->filtered == 0 && sample_ns >= 0) queue_ns = sample_ns;
  double segment_bytes = max_f((double)e->segment_bytes, 1.0);
  double multiple_ns = min_f(p->target_multiple * (double)e->rtt_min_ns, (double)p->target_max_ns);
  double base_ns = max_f(multiple_ns, (double)p->target_queue_ns);
  if (p->target_rtt_ns > 0) base_ns = (double)p->target_rtt_ns;
  double segments = max_f(f->window_bytes / segment_bytes, min_f(p->window_segments_min, 1.0));
  double scaling = f->scaling_alpha / sqrt(segments) - f->scaling_beta;
  double target_ns = base_ns * (1.0 + min_f(max_f(scaling, 0.0), p->scaling_multiple));
  double grown = 0.0;
  if (e->app_limited == 0) {
    double increase = p->increase_segments * segment_bytes;
    if (e->rtt_min_ns >= p->long_rtt_ns)
      increase = min_f(increase * (double)e->rtt_min_ns / (double)p->long_rtt_ns,
                       max_f(p->growth_share_max * f->window_bytes, increase));
    grown = increase * (double)e->acked_bytes;
  }
  f->round_host_ns = min_i(f->round_host_ns, e->ack_delay_ns);
  int64_t host_ns = min_i(f->round_host_ns, f->last_host_ns);
  double host_target_ns = max_f((double)p->host_target_ns, p->host_target_share * (double)e->rtt_min_ns);
  if ((double)host_ns <= host_target_ns || f->last_host_ns == no_sample_ns) {
    f->host_window_bytes += grown / max_f(f->host_window_bytes, 1.0);
  } else if (e->now_ns - f->host_cut_ns >= span_ns) {
    double excess = ((double)host_ns - host_target_ns) / (double)host_ns;
    double share = min_f(p->decrease_gain * excess, p->decrease_max);
    f->host_window_bytes = min_f(f->host_window_bytes, f->window_bytes) * (1.0 - share);
    f->host_cut_ns = e->now_ns;
  }

  if (e->rtt_min_ns > 0 && e->rtt_min_ns < p->long_rtt_ns) f->doubling = 0;
  if (f->doubling == 1) {
    int64_t late_ns = min_i(max_i(e->rtt_min_ns / 8, p->doubling_late_ns_min), p->doubling_late_ns_max);
    if (e->rtt_ns > e->rtt_min_ns + late_ns) {
      f->late_samples += 1;
    } else if (e->rtt_ns > 0) {
      f->late_samples = 0;
    }
    if (f->late_samples >= p->doubling_samples) {
      f->doubling = 0;
      if (e->now_ns - f->last_cut_ns >= cut_span_ns) {
        f->window_bytes *= 0.5;
        f->last_cut_ns = e->now_ns;
      }
    } else if (e->app_limited == 0)
      f->window_bytes += max_f((double)e->acked_bytes, 0.0);
  } else if (queue_ns == no_sample_ns || (double)queue_ns <= target_ns) {
    f->window_bytes += grown / max_f(f->window_bytes, (double)e->segment_bytes);
  } else if (e->now_ns - f->last_cut_ns >= cut_span_ns) {
    double whole_ns = (double)queue_ns;
    if (p->target_rtt_ns == 0) whole_ns += (double)e->rtt_min_ns;
    double excess = ((double)queue_ns - target_ns) / whole_ns;
    f->window_bytes *= 1.0 - min_f(p->decrease_gain * excess, p->decrease_max);
    f->last_cut_ns = e->now_ns;
  }
  answer(f, p, e, result);
  return 0;
}
