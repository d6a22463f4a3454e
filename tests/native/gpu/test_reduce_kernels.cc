// Tests that arrays are reduced by each type's arithmetic, at every alignment, into one or two destinations. The
// expected values are computed independently of the kernels: in double, rounded by the math library.
#include "tests/native/watched.h"
// watched.h must come first, because it observes the code in the headers below.
#include <cmath>
#include <limits>
#include <memory>

#include "native/gpu/kernels.h"
#include "tests/native/check.h"

namespace {

using namespace weft;
using gpu::ElementType;
using gpu::Operation;
using test::Draw;
using test::Placed;
using test::watched;

constexpr ElementType kTypes[] = {ElementType::f32, ElementType::f16, ElementType::bf16, ElementType::f64,
                                  ElementType::i32, ElementType::i64, ElementType::u8};
constexpr Operation kOperations[] = {Operation::sum, Operation::min, Operation::max};

std::size_t bytes_of(ElementType type) {
#define WEFT_BYTES(name, bytes) bytes,
  static constexpr std::size_t kBytes[] = {WEFT_REDUCE_TYPES(WEFT_BYTES)};
#undef WEFT_BYTES
  return kBytes[static_cast<std::size_t>(type)];
}

struct Format {
  int fraction_bits, exponent_bits;
};
constexpr Format kF16{10, 5}, kBf16{7, 8};

// The value that the bits of a 16-bit format stand for.
double widened(Format format, unsigned bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const unsigned fraction = bits & ((1u << format.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 2 * bias + 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const double whole = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - format.fraction_bits);
}

// The bits of the nearest value of a 16-bit format, ties to even; for a NaN, the bits of some NaN.
unsigned narrowed(Format format, double value) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const unsigned infinity = ((1u << format.exponent_bits) - 1) << format.fraction_bits;
  const unsigned sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return infinity | 1;
  if (value == 0) return sign;
  if (std::isinf(value)) return sign | infinity;
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.fraction_bits - exponent));
  // Rounding up may carry into the exponent, and may give infinity.
  const unsigned rounded =
      static_cast<unsigned>(units) + (static_cast<unsigned>(exponent + bias - 1) << format.fraction_bits);
  return sign | std::min(rounded, infinity);
}

template <class Float>
Float expected_of(Operation operation, Float a, Float b) {
  if (operation == Operation::sum) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  const bool a_first = a != b ? a < b : std::signbit(a);
  return a_first == (operation == Operation::min) ? a : b;
}

template <class Number>
Number whole_of(Operation operation, Number a, Number b) {
  using Wraps = std::make_unsigned_t<Number>;
  if (operation == Operation::sum) return static_cast<Number>(static_cast<Wraps>(a) + static_cast<Wraps>(b));
  return operation == Operation::min ? std::min(a, b) : std::max(a, b);
}

template <class Number>
Number read(const std::uint8_t* from) {
  Number number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

template <class Float>
bool same(Float a, Float b) {
  return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof(a)) == 0;
}

bool narrow_matches(Format format, Operation operation, const std::uint8_t* a, const std::uint8_t* b,
                    const std::uint8_t* got) {
  const auto x = static_cast<float>(widened(format, read<std::uint16_t>(a)));
  const auto y = static_cast<float>(widened(format, read<std::uint16_t>(b)));
  const unsigned found = read<std::uint16_t>(got), wanted = narrowed(format, expected_of(operation, x, y));
  return std::isnan(widened(format, wanted)) ? std::isnan(widened(format, found)) : found == wanted;
}

bool matches(ElementType type, Operation operation, const std::uint8_t* a, const std::uint8_t* b,
             const std::uint8_t* got) {
  switch (type) {
    case ElementType::f32:
      return same(read<float>(got), expected_of(operation, read<float>(a), read<float>(b)));
    case ElementType::f64:
      return same(read<double>(got), expected_of(operation, read<double>(a), read<double>(b)));
    case ElementType::f16:
      return narrow_matches(kF16, operation, a, b, got);
    case ElementType::bf16:
      return narrow_matches(kBf16, operation, a, b, got);
    case ElementType::i32:
      return read<std::int32_t>(got) == whole_of(operation, read<std::int32_t>(a), read<std::int32_t>(b));
    case ElementType::i64:
      return read<std::int64_t>(got) == whole_of(operation, read<std::int64_t>(a), read<std::int64_t>(b));
    case ElementType::u8:
      return *got == whole_of(operation, *a, *b);
  }
  return false;
}

// Fills an array with random bits; about every sixteenth element is an infinity, a NaN, a zero or a smallest number.
void fill(Draw* draw, ElementType type, Placed* array) {
  draw->fill(array->data(), array->bytes());
  const std::size_t bytes = bytes_of(type);
  static constexpr std::uint64_t kTop[] = {0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x0000, 0x8000, 0x0001, 0x8001,
                                           0x7ff0, 0xfff0, 0x7c00, 0xfc00, 0x7e00, 0x7bff, 0xfbff, 0x3c00};
  for (std::size_t i = 0; bytes > 1 && i + bytes <= array->bytes(); i += bytes) {
    if (!draw->one_in(16)) continue;
    const std::uint64_t bits = kTop[draw->below(16)] << (8 * (bytes - 2));
    std::memcpy(array->data() + i, &bits, bytes);
  }
}

enum class InPlace { no, out_is_a, out_is_b, also_is_a, also_is_b };

struct Places {
  std::size_t a, b, out, also;
};

void check(const gpu::Kernels& kernels, ElementType type, Operation operation, std::size_t elements, Places places,
           bool twice, InPlace in_place, Draw* draw) {
  const std::size_t bytes = elements * bytes_of(type);
  Placed a(bytes, places.a, 0), b(bytes, places.b, 0), out(bytes, places.out, 0x11), also(bytes, places.also, 0x11);
  fill(draw, type, &a);
  fill(draw, type, &b);
  const std::vector<std::uint8_t> a_before(a.data(), a.data() + bytes), b_before(b.data(), b.data() + bytes);
  const std::uint64_t first = in_place == InPlace::out_is_a   ? a.address()
                              : in_place == InPlace::out_is_b ? b.address()
                                                              : out.address();
  std::uint64_t second = twice ? also.address() : 0;
  if (in_place == InPlace::also_is_a) second = a.address();
  if (in_place == InPlace::also_is_b) second = b.address();
  watched().forget();
  watched().allow(a.address(), bytes, false);
  watched().allow(b.address(), bytes, false);
  watched().allow(first, bytes, true);
  if (second != 0) watched().allow(second, bytes, true);
  CHECK_EQUAL(kernels.reduce(type, operation, {a.address(), b.address(), first, second, elements}, nullptr), 0);
  CHECK_EQUAL(watched().breaches(), "");
  const auto* const got = reinterpret_cast<const std::uint8_t*>(first);
  for (std::size_t i = 0; i < bytes; i += bytes_of(type))
    CHECK(matches(type, operation, &a_before[i], &b_before[i], got + i));
  if (second != 0) CHECK(bytes == 0 || std::memcmp(reinterpret_cast<const void*>(second), got, bytes) == 0);
  CHECK(a.guarded() && b.guarded() && out.guarded() && also.guarded());
}

std::unique_ptr<gpu::Kernels> watched_kernels() {
  std::string error;
  auto kernels = gpu::Kernels::load(test::host_driver(), nullptr, "any", &error);
  CHECK_EQUAL(error, "");
  return kernels;
}

}  // namespace

TEST(reduce__every_type_and_operation_at_drawn_places) {
  const auto kernels = watched_kernels();
  for (const ElementType type : kTypes) {
    const std::size_t bytes = bytes_of(type);
    for (const Operation operation : kOperations) {
      Draw draw(static_cast<std::uint64_t>(type) * 3 + static_cast<std::uint64_t>(operation) + 1);
      for (int round = 0; round < 150; ++round) {
        // Enough elements for two thread blocks that work by words, and for more than one that works by elements.
        const std::size_t most = round % 10 == 0 ? 40'000 / bytes : round % 3 == 0 ? 600 : 70;
        const std::size_t elements = draw.below(most + 1);
        const bool alike = draw.one_in(4);
        const auto place = [&] { return bytes * draw.below(16 / bytes); };
        const std::size_t one = place();
        const Places places =
            alike ? Places{one, one, one, one} : Places{place(), place(), one, draw.one_in(2) ? one : place()};
        check(*kernels, type, operation, elements, places, draw.one_in(2), static_cast<InPlace>(draw.below(5)), &draw);
      }
    }
  }
}

TEST(reduce__every_alignment_of_bytes) {
  const auto kernels = watched_kernels();
  Draw draw(9);
  for (std::size_t i = 0; i < 4'096; ++i) {
    const Places places{i % 16, i / 16 % 16, i / 256, (i * 7) % 16};
    check(*kernels, ElementType::u8, kOperations[i % 3], 20 + i % 130, places, i % 2 == 0, InPlace::no, &draw);
  }
}

TEST(reduce__narrow_formats_are_read_and_rounded_exactly) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    CHECK(same(static_cast<double>(gpu::device::from_f16(half)), widened(kF16, bits)));
    CHECK(same(static_cast<double>(gpu::device::from_bf16(half)), widened(kBf16, bits)));
    for (const Format format : {kF16, kBf16}) {
      const bool f16 = format.exponent_bits == 5;
      const double here = widened(format, bits), next = widened(format, bits + 1);
      if (!std::isfinite(here) || bits == 0x7fff || bits == 0xffff) continue;
      // Round the value itself, the midpoint between it and the next value, and the neighbours of the midpoint. After
      // the largest value, the next value is extrapolated.
      const double above = std::isfinite(next) ? next : here + (here - widened(format, bits - 1));
      const auto middle = static_cast<float>(here + (above - here) / 2);
      for (const float value : {static_cast<float>(here), middle, std::nextafter(middle, 0.0f),
                                std::nextafter(middle, std::copysign(3.4e38f, middle))}) {
        const unsigned got = f16 ? gpu::device::to_f16(value) : gpu::device::to_bf16(value);
        CHECK_EQUAL(got, narrowed(format, static_cast<double>(value)));
      }
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float sign : {1.0f, -1.0f}) {
    CHECK(std::isnan(widened(kF16, gpu::device::to_f16(std::copysign(nan, sign)))));
    CHECK(std::isnan(widened(kBf16, gpu::device::to_bf16(std::copysign(nan, sign)))));
    CHECK_EQUAL(gpu::device::to_f16(sign * infinity), sign < 0 ? 0xfc00 : 0x7c00);
    CHECK_EQUAL(gpu::device::to_bf16(sign * infinity), sign < 0 ? 0xff80 : 0x7f80);
    CHECK_EQUAL(gpu::device::to_f16(sign * 3.4e38f), sign < 0 ? 0xfc00 : 0x7c00);
    CHECK_EQUAL(gpu::device::to_f16(sign * 1e-30f), sign < 0 ? 0x8000 : 0);
  }
}

TEST(reduce__what_is_refused_and_what_need_not_be_done) {
  const auto kernels = watched_kernels();
  test::only_counts() = true;
  test::blocks_launched() = 0;
  const auto reduce = [&](ElementType type, gpu::Reduction reduction) {
    return kernels->reduce(type, Operation::sum, reduction, nullptr);
  };
  CHECK_EQUAL(reduce(ElementType::f32, {16, 32, 48, 0, 0}), gpu::kSuccess);
  CHECK_EQUAL(reduce(ElementType::f32, {18, 32, 48, 0, 1}), gpu::kInvalidValue);
  CHECK_EQUAL(reduce(ElementType::f64, {16, 36, 48, 0, 1}), gpu::kInvalidValue);
  CHECK_EQUAL(reduce(ElementType::f16, {16, 32, 49, 0, 1}), gpu::kInvalidValue);
  CHECK_EQUAL(reduce(ElementType::bf16, {16, 32, 48, 65, 1}), gpu::kInvalidValue);
  CHECK_EQUAL(reduce(static_cast<ElementType>(7), {16, 32, 48, 0, 1}), gpu::kInvalidValue);
  CHECK_EQUAL(kernels->reduce(ElementType::u8, static_cast<Operation>(3), {16, 32, 48, 0, 1}, nullptr),
              gpu::kInvalidValue);
  CHECK_EQUAL(test::blocks_launched(), 0u);
  CHECK_EQUAL(reduce(ElementType::u8, {17, 33, 49, 65, 1}), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), 1u);
  CHECK_EQUAL(reduce(ElementType::f32, {16, 32, 48, 0, 1 << 20}), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), 256u);  // each thread handles four words
  CHECK_EQUAL(reduce(ElementType::f32, {16, 32, 48, 68, 1 << 20}), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), 512u);  // alignments differ, so each thread handles eight elements
  test::only_counts() = false;
}
