// Encodes BPF instructions.
#include "native/datapath/xdp/assembler.h"

namespace weft::datapath::xdp {

void Assembler::emit(int code, Register to, Register from, std::int16_t offset, std::int32_t value) {
  const auto registers = static_cast<std::uint8_t>(bits(from) << 4 | bits(to));
  code_.push_back({static_cast<std::uint8_t>(code), registers, offset, value});
}

void Assembler::load_map(Register to, int map) {
  constexpr auto kIsMap = static_cast<Register>(1);  // BPF_PSEUDO_MAP_FD, in place of a source register
  emit(0x18, to, kIsMap, 0, map);
  emit(0x00, Register::r0, Register::r0, 0, 0);  // the upper half of the value
}

void Assembler::jump_to(const std::string& label, int code, Register a, Register b, std::int32_t value) {
  jumps_.emplace_back(code_.size(), label);
  emit(code, a, b, 0, value);
}

std::vector<BpfInstruction> Assembler::finish() const {
  std::vector<BpfInstruction> code = code_;
  for (const auto& [at, label] : jumps_) code[at].offset = static_cast<std::int16_t>(labels_.at(label) - at - 1);
  return code;
}

}  // namespace weft::datapath::xdp
