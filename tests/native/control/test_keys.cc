// Tests the names of pre-shared keys and their derivation.
#include "native/control/keys.h"
#include "tests/native/check.h"

namespace {

using namespace weft::control;

KeyName handle_name(bool to_owner, std::uint64_t node) {
  KeyName name;
  name.guard = Guard::key;
  name.to_owner = to_owner;
  name.node = node;
  name.key_id = to_owner ? 0 : 99;
  return name;
}

}  // namespace

TEST(keys__names_survive) {
  for (const bool to_owner : {true, false}) {
    KeyName back;
    CHECK(decode(encode(handle_name(to_owner, 0x0123456789abcdef)), &back));
    CHECK(back.guard == Guard::key);
    CHECK_EQUAL(back.to_owner, to_owner);
    CHECK_EQUAL(back.node, 0x0123456789abcdefu);
    CHECK_EQUAL(back.key_id, to_owner ? 0u : 99u);
  }
  KeyName secret, back;
  secret.guard = Guard::secret;
  CHECK(decode(encode(secret), &back));
  CHECK(back.guard == Guard::secret);
}

TEST(keys__other_names_are_none) {
  const std::string good = encode(handle_name(true, 7));
  KeyName back;
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    CHECK(!decode(good.substr(0, bytes), &back));
    CHECK(back.guard == Guard::none);
  }
  CHECK(!decode(good + "x", &back));
  CHECK(!decode("weft handle =1234567812345678", &back));
  CHECK(decode("weft handle <1234567812345678", &back));
}

// The secret, the handle's key and the direction each change the pre-shared key.
TEST(keys__differ_in_each_input) {
  const HandleKey one = random_key(), other = random_key();
  CHECK(is_set(one) && one != other);
  CHECK(!is_set(HandleKey()));
  const KeyName to = handle_name(true, 1), from = handle_name(false, 1);
  KeyName secret;
  secret.guard = Guard::secret;
  const Digest keys[] = {derive(to, "", one),       derive(from, "", one),       derive(to, "", other),
                         derive(to, "secret", one), derive(from, "secret", one), derive(secret, "secret", one),
                         derive(secret, "", one)};
  for (const Digest& left : keys) {
    for (const Digest& right : keys) CHECK_EQUAL(&left == &right, equal_digests(left, right));
  }
  CHECK(equal_digests(derive(secret, "secret", one), derive(secret, "secret", other)));
}
