// Interfaces made from lines of text, for tests of the choice among them.
#pragma once

#include <sys/socket.h>

#include <sstream>
#include <string>
#include <vector>

#include "native/datapath/udp/interface_choice.h"
#include "tests/native/check.h"

namespace weft::test {

// An address such as "10.0.0.1/24" or "fe80::1/64".
inline datapath::InterfaceAddress address(const std::string& text) {
  const std::size_t slash = text.find('/');
  datapath::InterfaceAddress made;
  std::string error;
  CHECK(datapath::resolve(text.substr(0, slash), 0, AF_UNSPEC, &made.address, &error));
  made.prefix_bits = std::stoi(text.substr(slash + 1));
  return made;
}

// An interface from text: name, kind ("nic" for none), then addresses; "down" for one that is down.
inline datapath::Interface interface(const std::string& line) {
  std::istringstream words(line);
  datapath::Interface made;
  std::string word;
  words >> made.name >> made.kind;
  made.loopback = made.name == "lo";
  made.bridge = made.kind == "bridge" || made.kind == "bridge-of-nic";
  made.bridges_nic = made.kind == "bridge-of-nic";
  if (made.kind == "nic") made.kind.clear();
  made.up = true;
  while (words >> word) {
    if (word == "down") made.up = false;
    if (word != "down") made.addresses.push_back(address(word));
  }
  return made;
}

// `lo` as usual hosts have it, unless a line describes it, and the interfaces of the lines.
inline std::vector<datapath::Interface> host(const std::vector<std::string>& lines) {
  std::vector<datapath::Interface> made{interface("lo nic 127.0.0.1/8 ::1/128")};
  for (const std::string& line : lines) {
    if (line.rfind("lo ", 0) == 0) made.clear();
    made.push_back(interface(line));
  }
  return made;
}

// Names of the chosen devices and their first addresses, as in "eth0=10.0.0.1 eth1+eth2=10.0.0.2".
inline std::string chosen(const std::vector<datapath::Interface>& all, const datapath::InterfaceWish& wish = {}) {
  datapath::InterfaceChoice choice;
  std::string error;
  if (!choose_interfaces(all, wish, &choice, &error)) return "error: " + error;
  std::string text;
  for (const auto& device : choice.devices) {
    text += text.empty() ? "" : " ";
    for (std::size_t i = 0; i < device.size(); ++i) text += (i == 0 ? "" : "+") + device[i].interface->name;
    text += "=" + device[0].address.text();
  }
  return text + (choice.warning.empty() ? "" : " (" + choice.warning + ")");
}

}  // namespace weft::test
