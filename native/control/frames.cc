// Encodes fields one after another, in little-endian order. A reader that has failed once stays failed, so a decoder
// checks only at its end. The header has the same layout in every version, so that both ends can refuse another
// version.
#include "native/control/frames.h"

#include <netinet/in.h>

#include <cstring>

#include "native/core/types.h"
#include "native/wire/crc32c.h"

namespace weft::control {
namespace {

class Writer {
 public:
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(const std::string& text) {
    put(static_cast<std::uint16_t>(text.size()));
    bytes_ += text;
  }
  std::string frame(FrameType type) const {
    Writer header;
    header.put(kControlMagic);
    header.put(kControlVersion);
    header.put(static_cast<std::uint16_t>(type));
    header.put(static_cast<std::uint32_t>(bytes_.size()));
    header.put(wire::crc32c(0, bytes_.data(), bytes_.size()));
    return header.bytes_ + bytes_;
  }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <class T>
  void get(T* out) {
    if (bytes_.size() - at_ < sizeof *out) return fail();
    std::memcpy(out, bytes_.data() + at_, sizeof *out);
    at_ += sizeof *out;
  }
  void get(bool* out) {
    std::uint8_t value = 0;
    get(&value);
    *out = value != 0;
  }
  void get_text(std::string* out, std::size_t most = 0xFFFF) {
    std::uint16_t size = 0;
    get(&size);
    if (bytes_.size() - at_ < size || size > most) return fail();
    out->assign(bytes_, at_, size);
    at_ += size;
  }
  std::size_t count(std::size_t most) {
    std::uint16_t value = 0;
    get(&value);
    if (value > most) fail();
    return failed_ ? 0 : value;
  }
  bool whole() const { return !failed_ && at_ == bytes_.size(); }

 private:
  void fail() {
    failed_ = true;
    at_ = bytes_.size();
  }
  const std::string& bytes_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

void put_address(Writer* writer, const datapath::SocketAddress& address) {
  std::uint8_t bytes[16] = {};
  writer->put(static_cast<std::uint8_t>(address.is_v6() ? 6 : 4));
  if (address.is_v6()) {
    std::memcpy(bytes, &address.v6.sin6_addr, 16);
  } else {
    std::memcpy(bytes, &address.v4.sin_addr, 4);
  }
  for (const std::uint8_t byte : bytes) writer->put(byte);
}

bool get_address(Reader* reader, datapath::SocketAddress* address) {
  std::uint8_t family = 0, bytes[16];
  reader->get(&family);
  for (std::uint8_t& byte : bytes) reader->get(&byte);
  *address = datapath::SocketAddress();
  if (family == 6) {
    address->v6.sin6_family = AF_INET6;
    std::memcpy(&address->v6.sin6_addr, bytes, 16);
  } else {
    address->v4.sin_family = AF_INET;
    std::memcpy(&address->v4.sin_addr, bytes, 4);
  }
  return family == 4 || family == 6;
}

void put_flow(Writer* writer, const FlowEnd& flow) {
  writer->put(flow.engine);
  writer->put(flow.remote_engine);
  writer->put(flow.peer);
  writer->put(flow.peer_token);
  writer->put(flow.flow);
  writer->put(flow.flow_token);
  writer->put_text(flow.params);
}

void get_flow(Reader* reader, FlowEnd* flow) {
  reader->get(&flow->engine);
  reader->get(&flow->remote_engine);
  reader->get(&flow->peer);
  reader->get(&flow->peer_token);
  reader->get(&flow->flow);
  reader->get(&flow->flow_token);
  reader->get_text(&flow->params, kParamsBytesMax);
}

}  // namespace

std::string encode(FrameType type, const Hello& hello) {
  Writer writer;
  writer.put(hello.node);
  writer.put(hello.target_node);
  writer.put(hello.session);
  writer.put(hello.joined);
  writer.put(hello.device);
  writer.put(hello.engines);
  for (const datapath::SocketAddress* address : {&hello.from, &hello.to, &hello.control}) {
    put_address(&writer, *address);
    writer.put(address->port());
  }
  writer.put(static_cast<std::uint16_t>(hello.addresses.size()));
  for (const datapath::SocketAddress& address : hello.addresses) put_address(&writer, address);
  writer.put_text(hello.local);
  return writer.frame(type);
}

bool decode(const std::string& body, Hello* out) {
  Reader reader(body);
  reader.get(&out->node);
  reader.get(&out->target_node);
  reader.get(&out->session);
  reader.get(&out->joined);
  reader.get(&out->device);
  reader.get(&out->engines);
  bool known = true;
  for (datapath::SocketAddress* address : {&out->from, &out->to, &out->control}) {
    std::uint16_t port = 0;
    known = get_address(&reader, address) && known;
    reader.get(&port);
    address->set_port(port);
  }
  out->addresses.resize(reader.count(kAddressesMax));
  for (datapath::SocketAddress& address : out->addresses) known = get_address(&reader, &address) && known;
  reader.get_text(&out->local, kLocalBytesMax);
  return reader.whole() && known && out->node != 0 && out->session != 0 && out->engines <= kEnginesMax;
}

std::string encode(FrameType type, const Open& open) {
  Writer writer;
  writer.put(open.dial);
  writer.put(open.listener);
  writer.put(open.status);
  writer.put(open.device);
  writer.put(open.segment_bytes);
  writer.put(open.train_bytes);
  writer.put(open.buffer_bytes);
  writer.put(static_cast<std::uint8_t>(open.payload_crc));
  writer.put(open.eager_bytes);
  writer.put(open.eager_slots);
  writer.put(static_cast<std::uint16_t>(open.addresses.size()));
  for (const datapath::SocketAddress& address : open.addresses) put_address(&writer, address);
  writer.put(static_cast<std::uint16_t>(open.flows.size()));
  for (const FlowEnd& flow : open.flows) put_flow(&writer, flow);
  writer.put_text(open.local);
  return writer.frame(type);
}

bool decode(const std::string& body, Open* out) {
  Reader reader(body);
  reader.get(&out->dial);
  reader.get(&out->listener);
  reader.get(&out->status);
  reader.get(&out->device);
  reader.get(&out->segment_bytes);
  reader.get(&out->train_bytes);
  reader.get(&out->buffer_bytes);
  reader.get(&out->payload_crc);
  reader.get(&out->eager_bytes);
  reader.get(&out->eager_slots);
  out->addresses.resize(reader.count(kAddressesMax));
  bool known = true;
  for (datapath::SocketAddress& address : out->addresses) known = get_address(&reader, &address) && known;
  out->flows.resize(reader.count(kStripesMax));
  for (FlowEnd& flow : out->flows) get_flow(&reader, &flow);
  reader.get_text(&out->local, kLocalBytesMax);
  return reader.whole() && known;
}

std::string encode(const Confirm& confirm) {
  Writer writer;
  writer.put(confirm.dial);
  return writer.frame(FrameType::confirm);
}

bool decode(const std::string& body, Confirm* out) {
  Reader reader(body);
  reader.get(&out->dial);
  return reader.whole();
}

std::string encode(const Refuse& refuse) {
  Writer writer;
  writer.put(refuse.dial);
  writer.put(refuse.status);
  writer.put(refuse.version);
  writer.put_text(refuse.text.substr(0, kRefusalTextMax));
  return writer.frame(FrameType::refuse);
}

bool decode(const std::string& body, Refuse* out) {
  Reader reader(body);
  reader.get(&out->dial);
  reader.get(&out->status);
  reader.get(&out->version);
  reader.get_text(&out->text, kRefusalTextMax);
  return reader.whole();
}

std::string encode(const Ping& ping) {
  Writer writer;
  writer.put(ping.number);
  return writer.frame(FrameType::ping);
}

bool decode(const std::string& body, Ping* out) {
  Reader reader(body);
  reader.get(&out->number);
  return reader.whole();
}

std::string encode(const Pong& pong) {
  Writer writer;
  writer.put(pong.number);
  writer.put(static_cast<std::uint16_t>(pong.engine_age_ms.size()));
  for (const std::uint32_t age_ms : pong.engine_age_ms) writer.put(age_ms);
  return writer.frame(FrameType::pong);
}

bool decode(const std::string& body, Pong* out) {
  Reader reader(body);
  reader.get(&out->number);
  out->engine_age_ms.resize(reader.count(kEnginesMax));
  for (std::uint32_t& age_ms : out->engine_age_ms) reader.get(&age_ms);
  return reader.whole();
}

std::string encode(const Verdict& verdict) {
  Writer writer;
  writer.put(verdict.status);
  writer.put_text(verdict.text.substr(0, kRefusalTextMax));
  return writer.frame(FrameType::verdict);
}

bool decode(const std::string& body, Verdict* out) {
  Reader reader(body);
  reader.get(&out->status);
  reader.get_text(&out->text, kRefusalTextMax);
  return reader.whole();
}

Take take_frame(std::string* buffer, Frame* out, std::uint16_t* version) {
  std::uint32_t magic = 0, body_bytes = 0, crc = 0;
  std::uint16_t type = 0;
  // A wrong magic number is detected in the first bytes; waiting for a full header would only keep the socket open.
  const std::size_t seen = buffer->size() < 4 ? buffer->size() : 4;
  if (std::memcmp(buffer->data(), &kControlMagic, seen) != 0) return Take::stranger;
  if (buffer->size() < kFrameHeaderBytes) return Take::more;
  std::memcpy(&magic, buffer->data(), 4);
  std::memcpy(version, buffer->data() + 4, 2);
  std::memcpy(&type, buffer->data() + 6, 2);
  std::memcpy(&body_bytes, buffer->data() + 8, 4);
  std::memcpy(&crc, buffer->data() + 12, 4);
  if (*version != kControlVersion) return Take::version;
  if (body_bytes > kFrameBodyMax) return Take::damaged;
  if (buffer->size() < kFrameHeaderBytes + body_bytes) return Take::more;
  out->type = static_cast<FrameType>(type);
  out->body.assign(*buffer, kFrameHeaderBytes, body_bytes);
  buffer->erase(0, kFrameHeaderBytes + body_bytes);
  return wire::crc32c(0, out->body.data(), out->body.size()) == crc ? Take::frame : Take::damaged;
}

}  // namespace weft::control
