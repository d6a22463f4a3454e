// Writes BPF instructions (RFC 9669), with labels for jumps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "native/datapath/xdp/kernel_abi.h"

namespace weft::datapath::xdp {

enum class Register : std::uint8_t { r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, stack };
enum class Size : std::uint8_t { word = 0x00, half = 0x08, byte = 0x10, two_words = 0x18 };
enum class Test : std::uint8_t { equal = 0x10, greater = 0x20, at_least = 0x30, not_equal = 0x50 };

class Assembler {
 public:
  void move(Register to, Register from) { emit(0xbf, to, from, 0, 0); }
  void move(Register to, std::int32_t value) { emit(0xb7, to, Register::r0, 0, value); }
  void add(Register to, std::int32_t value) { emit(0x07, to, Register::r0, 0, value); }
  void add(Register to, Register from) { emit(0x0f, to, from, 0, 0); }
  void bit_and(Register to, std::int32_t value) { emit(0x57, to, Register::r0, 0, value); }
  // to = what is at `from` + offset
  void load(Register to, Size size, Register from, std::int16_t offset) {
    emit(0x61 | bits(size), to, from, offset, 0);
  }
  void store(Size size, Register at, std::int16_t offset, Register from) {
    emit(0x63 | bits(size), at, from, offset, 0);
  }
  void store(Size size, Register at, std::int16_t offset, std::int32_t value) {
    emit(0x62 | bits(size), at, Register::r0, offset, value);
  }
  void load_map(Register to, int map);  // the map with this descriptor
  void jump(const std::string& label) { jump_to(label, 0x05, Register::r0, Register::r0, 0); }
  void jump_if(Register a, Test test, Register b, const std::string& label) {
    jump_to(label, 0x0d | bits(test), a, b, 0);
  }
  void jump_if(Register a, Test test, std::int32_t value, const std::string& label) {
    jump_to(label, 0x05 | bits(test), a, Register::r0, value);
  }
  void label(const std::string& name) { labels_[name] = code_.size(); }
  void call(std::int32_t helper) { emit(0x85, Register::r0, Register::r0, 0, helper); }
  void leave() { emit(0x95, Register::r0, Register::r0, 0, 0); }

  // The program, with all jumps resolved. Every label that a jump names must have been set.
  std::vector<BpfInstruction> finish() const;

 private:
  template <class Field>
  static int bits(Field field) {
    return static_cast<int>(field);
  }
  void emit(int code, Register to, Register from, std::int16_t offset, std::int32_t value);
  void jump_to(const std::string& label, int code, Register a, Register b, std::int32_t value);

  std::vector<BpfInstruction> code_;
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> jumps_;  // index of the instruction, its label
};

}  // namespace weft::datapath::xdp
