// Tests that control frames and handles survive encoding and decoding, and that damaged frames are refused.
// fuzz_frames.cc and fuzz_handle.cc do so with any bytes.
#include <cstdint>
#include <cstring>
#include <string>

#include "native/control/frames.h"
#include "native/control/handle.h"
#include "native/wire/crc32c.h"
#include "tests/native/check.h"

namespace {

using namespace weft::control;

Open sample_open() {
  Open open;
  open.dial = 7;
  open.listener = 9;
  open.device = 1;
  open.segment_bytes = 9000;
  open.train_bytes = 65'493;
  open.buffer_bytes = 1 << 20;
  open.payload_crc = true;
  open.addresses.resize(2);
  open.addresses[0].v4.sin_family = AF_INET;
  open.addresses[0].v4.sin_addr.s_addr = 0x0100007f;
  open.addresses[1].v6.sin6_family = AF_INET6;
  open.addresses[1].v6.sin6_addr.s6_addr[15] = 1;
  open.flows.resize(3);
  for (std::uint16_t i = 0; i < 3; ++i) {
    open.flows[i].engine = i;
    open.flows[i].remote_engine = static_cast<std::uint16_t>(i + 1);
    open.flows[i].peer_token = 100u + i;
    open.flows[i].flow_token = 200u + i;
    open.flows[i].params = "u" + std::string(300, static_cast<char>(i));
  }
  return open;
}

Frame take(const std::string& bytes) {
  std::string buffer = bytes;
  Frame frame;
  std::uint16_t version = 0;
  CHECK_EQUAL(take_frame(&buffer, &frame, &version), Take::frame);
  CHECK(buffer.empty());
  return frame;
}

}  // namespace

TEST(frames__open_survives) {
  const Frame frame = take(encode(FrameType::open, sample_open()));
  Open back;
  CHECK(decode(frame.body, &back));
  CHECK_EQUAL(back.dial, 7u);
  CHECK_EQUAL(back.segment_bytes, 9000u);
  CHECK(back.payload_crc);
  CHECK_EQUAL(back.addresses[0].text(), "127.0.0.1");
  CHECK_EQUAL(back.addresses[1].text(), "::1");
  CHECK_EQUAL(back.flows.size(), 3u);
  CHECK(back.flows[2].params == sample_open().flows[2].params);
  CHECK_EQUAL(back.flows[1].flow_token, 201u);
}

TEST(frames__others_survive) {
  Hello hello;
  hello.node = 5;
  hello.session = 9;
  hello.engines = 4;
  hello.from.v4.sin_family = AF_INET;
  hello.from.set_port(4242);
  hello.control.v6.sin6_family = AF_INET6;
  hello.control.v6.sin6_addr.s6_addr[15] = 1;
  Hello hello_back;
  CHECK(decode(take(encode(FrameType::hello, hello)).body, &hello_back));
  CHECK_EQUAL(hello_back.engines, 4);
  CHECK_EQUAL(hello_back.session, 9u);
  CHECK_EQUAL(hello_back.from.port(), 4242);
  CHECK_EQUAL(hello_back.control.text(), "::1");
  Pong pong, pong_back;
  pong.number = 3;
  pong.engine_age_ms = {1, 70'000};
  CHECK(decode(take(encode(pong)).body, &pong_back));
  CHECK_EQUAL(pong_back.number, 3u);
  CHECK(pong_back.engine_age_ms == pong.engine_age_ms);
  Verdict verdict_back;
  CHECK(decode(take(encode(Verdict{6, "why"})).body, &verdict_back));
  CHECK_EQUAL(verdict_back.status, 6u);
  Refuse refuse;
  refuse.text = std::string(2000, 'x');  // the encoder truncates it and does not refuse it
  refuse.status = 3;
  Refuse refuse_back;
  CHECK(decode(take(encode(refuse)).body, &refuse_back));
  CHECK_EQUAL(refuse_back.text.size(), 512u);
}

TEST(frames__come_in_pieces) {
  const std::string bytes = encode(Confirm{42});
  std::string buffer;
  Frame frame;
  std::uint16_t version = 0;
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) {
    buffer += bytes[i];
    CHECK_EQUAL(take_frame(&buffer, &frame, &version), Take::more);
  }
  buffer += bytes.back();
  CHECK_EQUAL(take_frame(&buffer, &frame, &version), Take::frame);
}

TEST(frames__stranger_version_damage) {
  Frame frame;
  std::uint16_t version = 0;
  std::string http = "GET / HTTP/1.1\r\n\r\n";
  CHECK_EQUAL(take_frame(&http, &frame, &version), Take::stranger);
  std::string other = encode(Confirm{1});
  other[4] = 77;
  CHECK_EQUAL(take_frame(&other, &frame, &version), Take::version);
  CHECK_EQUAL(version, 77);
  std::string damaged = encode(Confirm{1});
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  CHECK_EQUAL(take_frame(&damaged, &frame, &version), Take::damaged);
  std::string endless = encode(Confirm{1});
  endless[11] = 0x7F;  // a length field of gigabytes
  CHECK_EQUAL(take_frame(&endless, &frame, &version), Take::damaged);
}

TEST(handle__survives_and_refuses) {
  HandleFields fields, back;
  fields.node = 1;
  fields.listener = 2;
  fields.device = 3;
  fields.address.v4.sin_family = AF_INET;
  fields.address.v4.sin_addr.s_addr = 0x0100007f;
  fields.address.set_port(4242);
  fields.key = random_key();
  Handle handle;
  write_handle(fields, &handle);
  std::string error;
  CHECK(read_handle(handle, &back, &error));
  CHECK_EQUAL(back.listener, 2u);
  CHECK_EQUAL(back.address.text(), "127.0.0.1");
  CHECK_EQUAL(back.address.port(), 4242);
  CHECK(back.key == fields.key);
  for (std::size_t i = 0; i < 68; ++i) {
    Handle bad = handle;
    bad.bytes[i] = static_cast<std::uint8_t>(bad.bytes[i] ^ 0x10);
    error.clear();
    CHECK(!read_handle(bad, &back, &error));
    CHECK(!error.empty());
  }
}

// Version 1: 64 bytes without a key.
TEST(handle__of_the_first_version_is_read) {
  const std::uint8_t old_handle[kOldHandleBytes] = {'W', 'F', 'T', 'H', 1, 0, 52,   0,    1,   0, 0, 0,
                                                    0,   0,   0,   0,   2, 0, 0,    0,    0,   0, 0, 0,
                                                    3,   0,   0,   0,   4, 0, 0x92, 0x10, 127, 0, 0, 1};
  Handle handle;
  std::memcpy(handle.bytes, old_handle, sizeof old_handle);
  const std::uint32_t crc = weft::wire::crc32c(0, handle.bytes, 48);
  std::memcpy(handle.bytes + 48, &crc, 4);
  HandleFields back;
  std::string error;
  CHECK(read_handle(handle, &back, &error));
  CHECK_EQUAL(back.node, 1u);
  CHECK_EQUAL(back.listener, 2u);
  CHECK_EQUAL(back.address.text(), "127.0.0.1");
  CHECK_EQUAL(back.address.port(), 4242);
  CHECK(!is_set(back.key));
}
