// Tests that text from a peer can't forge log lines or send control characters to a terminal.
#include <string>
#include <string_view>

#include "native/engine/printable.h"
#include "tests/native/check.h"

using weft::engine::printable;

TEST(printable__ascii_stays) {
  std::string all;
  for (char byte = 0x20; byte < 0x7f; ++byte) all += byte;
  CHECK_EQUAL(printable(all, 1000), all);
  CHECK_EQUAL(printable("", 10), "");
}

TEST(printable__every_other_byte_is_a_question_mark) {
  for (int byte = 0; byte < 256; ++byte) {
    if (byte >= 0x20 && byte <= 0x7e) continue;
    CHECK_EQUAL(printable(std::string("a") + static_cast<char>(byte) + "b", 10), "a?b");
  }
  CHECK_EQUAL(printable("\x1b[2Jgr\xc3\xbc\xc3\x9f e\n", 100), "?[2Jgr???? e?");
}

TEST(printable__no_more_than_asked_for) {
  CHECK_EQUAL(printable("abcdef", 3), "abc");
  CHECK_EQUAL(printable("abcdef", 0), "");
  CHECK_EQUAL(printable(std::string_view("a\0b", 3), 3), "a?b");
}
