// Tests which interfaces are chosen on hosts of several kinds, by default and by lists in settings.
#include "native/datapath/udp/interface_choice.h"
#include "native/datapath/udp/reverse_path.h"
#include "tests/native/check.h"
#include "tests/native/datapath/made_interfaces.h"

namespace {

using namespace weft::datapath;
using weft::test::address;
using weft::test::chosen;
using weft::test::host;
using weft::test::interface;

std::string by_list(const std::vector<Interface>& all, const std::string& list) { return chosen(all, {list}); }
std::string by_nccl(const std::vector<Interface>& all, const std::string& list) {
  return chosen(all, {"", "auto", list});
}

const std::vector<Interface> kDgx = host({"enp1s0 nic 10.1.0.5/24", "ib0 nic 192.168.8.5/22", "ib1 nic down",
                                          "docker0 bridge 172.17.0.1/16", "bond0 bond 10.2.0.5/16", "eno3 nic"});
const std::vector<Interface> kKubernetes =
    host({"eth0 nic 10.77.0.1/24", "flannel.1 vxlan 10.244.0.0/32", "cni0 bridge 10.244.0.1/24",
          "veth1a2b veth fe80::1/64", "cali12 veth fe80::2/64", "tunl0 ipip 10.244.1.1/32",
          "cilium_host veth 10.0.0.7/32", "kube-ipvs0 dummy 10.96.0.1/32 10.96.0.10/32"});
const std::vector<Interface> kVirtual = host({"eth0 nic 172.31.4.9/20", "virbr0 bridge 192.168.122.1/24"});

}  // namespace

TEST(interfaces__of_usual_hosts) {
  CHECK_EQUAL(chosen(kDgx), "enp1s0=10.1.0.5 ib0=192.168.8.5 bond0=10.2.0.5");
  CHECK_EQUAL(chosen(kKubernetes), "eth0=10.77.0.1");
  CHECK_EQUAL(chosen(kVirtual), "eth0=172.31.4.9");
  CHECK_EQUAL(chosen(host({"eth0 nic 10.0.0.1/24", "eth1 nic 10.0.1.1/24", "eth0.7 vlan 10.7.0.1/24"})),
              "eth0=10.0.0.1 eth1=10.0.1.1 eth0.7=10.7.0.1");
  CHECK_EQUAL(chosen(host({"br0 bridge-of-nic 10.0.0.1/24", "virbr0 bridge 192.168.122.1/24"})), "br0=10.0.0.1");
  CHECK_EQUAL(chosen(host({})), "lo=127.0.0.1");
}

TEST(interfaces__a_pod_may_have_one_address_of_its_own_prefix) {
  CHECK_EQUAL(chosen(host({"eth0 veth 10.244.3.4/32"})), "eth0=10.244.3.4");
  CHECK_EQUAL(chosen(host({"wg0 wireguard 10.8.0.2/24"})), "wg0=10.8.0.2");
}

TEST(interfaces__a_host_with_routes_by_bgp_uses_its_address_on_lo) {
  const auto all = host({"lo nic 127.0.0.1/8 10.99.0.1/32", "eth0 nic fe80::1/64", "eth1 nic fe80::2/64"});
  CHECK_EQUAL(chosen(all), "lo=10.99.0.1");
  CHECK_EQUAL(chosen(host({"eth0 nic fe80::1/64", "dummy0 dummy 10.99.0.1/32"})), "dummy0=10.99.0.1");
  CHECK_EQUAL(by_list(all, "10.99.0.1"), "lo=10.99.0.1");
  CHECK_EQUAL(by_list(all, "lo"), "lo=127.0.0.1");
}

TEST(interfaces__only_link_local_ones_are_not_passed_over_in_silence) {
  const std::string said = chosen(host({"eth0 nic fe80::1/64"}));
  CHECK(said.rfind("lo=127.0.0.1 (only lo has an address beyond its link", 0) == 0);
  CHECK(said.find("WEFT_INTERFACES=eth0") != std::string::npos);
}

TEST(interfaces__an_exclusion_narrows_the_choice) {
  CHECK_EQUAL(by_nccl(kKubernetes, "^docker0,lo"), "eth0=10.77.0.1");
  CHECK_EQUAL(by_nccl(kDgx, "^docker,lo,ib"), "enp1s0=10.1.0.5 bond0=10.2.0.5");
  CHECK_EQUAL(by_nccl(kDgx, "^=ib"), "enp1s0=10.1.0.5 ib0=192.168.8.5 bond0=10.2.0.5");
  CHECK_EQUAL(by_list(kDgx, "^ib,bond"), "enp1s0=10.1.0.5");
  CHECK_EQUAL(by_list(kDgx, "^10.2.0.0/16"), "enp1s0=10.1.0.5 ib0=192.168.8.5");
  CHECK(by_nccl(kVirtual, "^eth,lo").rfind("error: NCCL_SOCKET_IFNAME=^eth,lo", 0) == 0);
}

TEST(interfaces__named_ones_are_used_whatever_they_are) {
  CHECK_EQUAL(by_nccl(kDgx, "docker"), "docker0=172.17.0.1");
  CHECK_EQUAL(by_nccl(kDgx, "=ib0"), "ib0=192.168.8.5");
  CHECK_EQUAL(by_nccl(kDgx, "lo"), "lo=127.0.0.1");
  CHECK_EQUAL(by_list(kDgx, "docker0"), "docker0=172.17.0.1");
  CHECK_EQUAL(by_list(kDgx, "=enp1s0+ib0,bond0"), "enp1s0+ib0=10.1.0.5 bond0=10.2.0.5");
  CHECK_EQUAL(by_list(kDgx, "10.0.0.0/8"), "enp1s0=10.1.0.5 bond0=10.2.0.5");
  CHECK_EQUAL(by_list(kDgx, "10.0.0.0/8+ib0"), "enp1s0+bond0+ib0=10.1.0.5");
  CHECK_EQUAL(chosen(kDgx, {"ib0", "auto", "enp"}), "ib0=192.168.8.5");  // ours before NCCL's
}

TEST(interfaces__a_family_is_heeded) {
  const auto all = host({"eth0 nic 10.0.0.1/24 2001:db8::1/64", "eth1 nic 10.0.1.1/24"});
  CHECK_EQUAL(chosen(all, {"", "ipv6"}), "eth0=2001:db8::1");
  CHECK_EQUAL(chosen(all, {"", "auto", "", "AF_INET6"}), "eth0=2001:db8::1");
  CHECK_EQUAL(chosen(all, {"", "ipv4", "", "AF_INET6"}), "eth0=10.0.0.1 eth1=10.0.1.1");
  CHECK(chosen(all, {"eth1", "ipv6"}).find("has no address of the requested family") != std::string::npos);
}

TEST(interfaces__a_wrong_list_says_what_there_is) {
  CHECK(by_list(kVirtual, "eth9").find("'eth9' (WEFT_INTERFACES) does not exist; there is lo (loopback), eth0") !=
        std::string::npos);
  CHECK(by_list(kVirtual, "10.9.0.0/16").find("no interface has an address in 10.9.0.0/16") != std::string::npos);
  CHECK(by_list(kVirtual, "10.9.0.0/33").find("does not exist") != std::string::npos);
  CHECK(by_list(kVirtual, "eth0,eth0").find("names eth0 twice") != std::string::npos);
  CHECK(by_list(kVirtual, "eth0,172.31.4.9").find("names eth0 twice") != std::string::npos);
  CHECK_EQUAL(by_list(kVirtual, "127.0.0.1,::1"), "lo=127.0.0.1 lo=::1");
  for (const char* empty : {",", "=", " ,+"}) {
    CHECK(by_list(kVirtual, empty).find("names no interface") != std::string::npos);
  }
  CHECK(by_list(kVirtual, "^eth,lo").find("leaves no interface") != std::string::npos);
}

TEST(reverse_path__two_nics_in_one_subnet_are_named_where_the_filter_is_strict) {
  const auto all = host({"eth0 nic 10.77.0.1/24", "eth1 nic 10.77.0.11/24", "eth2 nic 10.78.0.1/24"});
  const auto to = address("10.77.0.2/24").address;
  const std::string said = reverse_path_problem(all, to, [](const std::string& name) { return name == "eth1"; });
  CHECK(said.rfind("eth0 and eth1 are in one subnet", 0) == 0);
  CHECK(said.find("net.ipv4.conf.eth0.rp_filter=2 net.ipv4.conf.eth1.rp_filter=2") != std::string::npos);
  const auto loose = [](const std::string&) { return false; };
  const auto strict = [](const std::string&) { return true; };
  CHECK_EQUAL(reverse_path_problem(all, to, loose), "");
  CHECK_EQUAL(reverse_path_problem(all, address("10.78.0.2/24").address, strict), "");
  CHECK_EQUAL(reverse_path_problem(all, address("2001:db8::2/64").address, strict), "");
}
