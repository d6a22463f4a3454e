// Tests what is chosen on five kinds of host, from copies of the parts of /sys that the choice reads. The trees are
// made here, after public descriptions of those hosts; docs/OPERATING.md has the same table.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "native/datapath/udp/interface_sysfs.h"
#include "native/datapath/verbs/rdma_choice.h"
#include "tests/native/check.h"
#include "tests/native/datapath/made_interfaces.h"

namespace {

namespace fs = std::filesystem;
using namespace weft::datapath;
using weft::test::chosen;

// A copy of /sys, removed with the object.
class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "weft-sys-XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Tree() { fs::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  std::string root() const { return root_; }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  // A NIC at a PCI address, as in "pci0000:17/0000:17:01.0/0000:18:00.0"; `speed_mbps` -1: the driver does not say.
  void nic(const std::string& name, const std::string& pci, int speed_mbps) const {
    fs::create_directories(root_ / "devices" / pci);
    write("class/net/" + name + "/speed", std::to_string(speed_mbps));
    fs::create_directory_symlink(root_ / "devices" / pci, root_ / "class/net" / name / "device");
  }
  void bond(const std::string& name, const std::vector<std::string>& joined) const {
    write("class/net/" + name + "/uevent", "DEVTYPE=bond\nINTERFACE=" + name);
    fs::create_directories(root_ / "class/net" / name / "bonding");
    above(name, joined);
  }
  // `name` lies on other interfaces: a VLAN, a bond, a tunnel.
  void above(const std::string& name, const std::vector<std::string>& others) const {
    for (const std::string& other : others) write("class/net/" + name + "/lower_" + other, "");
  }
  void bridge(const std::string& name, const std::vector<std::string>& ports) const {
    fs::create_directories(root_ / "class/net" / name / "bridge");
    for (const std::string& port : ports) write("class/net/" + name + "/brif/" + port, "");
  }
  void virtual_function(const std::string& name, const std::string& pci, int speed_mbps) const {
    nic(name, pci, speed_mbps);
    write("devices/" + pci + "/physfn", "");
  }
  void rdma(const std::string& device, const std::string& link_layer, int gbit_per_s, const std::string& interface,
            const std::string& gid = "0000:0000:0000:0000:0000:ffff:0a02:0005") const {
    const std::string port = "class/infiniband/" + device + "/ports/1/";
    write(port + "state", "4: ACTIVE");
    write(port + "link_layer", link_layer);
    write(port + "rate", std::to_string(gbit_per_s) + " Gb/sec (4X NDR)");
    write(port + "gids/0", gid);
    write(port + "gid_attrs/types/0", link_layer == "Ethernet" ? "RoCE v2" : "IB/RoCE v1");
    if (link_layer == "Ethernet") write(port + "gid_attrs/ndevs/0", interface);
  }
  // Interfaces of lines as in made_interfaces.h, with what this tree says of them.
  std::vector<Interface> host(const std::vector<std::string>& lines) const {
    std::vector<Interface> all = weft::test::host(lines);
    for (Interface& each : all) read_sysfs(root_, &each);
    return all;
  }

 private:
  fs::path root_;
};

const Interface& named(const std::vector<Interface>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Interface& each) { return each.name == name; });
  CHECK(found != all.end());
  return *found;
}

// The devices of the chosen ports, as in "mlx5_0 mlx5_3"; with a GID that a setting gives as in "mlx5_0@3".
std::string ports_of(const Tree& tree, const RdmaWish& wish = {}) {
  const std::vector<RdmaPort> all = list_rdma_ports(tree.root());
  RdmaChoice choice;
  std::string error, text;
  if (!choose_rdma_ports(all, wish, &choice, &error)) return "error: " + error;
  for (const auto& device : choice.devices) {
    if (!text.empty()) text += ' ';
    for (std::size_t i = 0; i < device.size(); ++i) {
      text += (i == 0 ? "" : "+") + device[i].port->device;
      if (device[i].gid >= 0) text += "@" + std::to_string(device[i].gid);
    }
  }
  return text;
}

std::string gid_of_infiniband(int number) {
  return "fe80:0000:0000:0000:a088:c203:000" + std::to_string(number) + ":1111";
}

// Eight InfiniBand NICs for the GPUs, without IP addresses; two Ethernet ports in a bond; a management NIC.
void make_dgx(const Tree& tree) {
  for (int number = 0; number < 8; ++number) {
    const std::string bus = std::to_string(10 + number);
    tree.nic("ibp" + bus + "s0", "pci0000:" + bus + "/0000:" + bus + ":01.0", 400'000);
    tree.rdma("mlx5_" + std::to_string(number), "InfiniBand", 400, "", gid_of_infiniband(number));
  }
  tree.nic("enp41s0f1np1", "pci0000:29/0000:29:00.1", 200'000);
  tree.nic("enp170s0f1np1", "pci0000:aa/0000:aa:00.1", 200'000);
  tree.bond("bond0", {"enp170s0f1np1", "enp41s0f1np1"});
  tree.rdma("mlx5_bond_0", "Ethernet", 200, "bond0");
  tree.nic("eno3", "pci0000:05/0000:05:00.0", 10'000);
  tree.bridge("docker0", {});
}
const std::vector<std::string> kDgxLines = {"ibp10s0 nic",
                                            "ibp11s0 nic",
                                            "enp41s0f1np1 nic",
                                            "enp170s0f1np1 nic",
                                            "bond0 bond 10.2.0.5/16",
                                            "eno3 nic 10.1.0.5/24",
                                            "docker0 bridge 172.17.0.1/16"};

}  // namespace

TEST(host_trees__a_dgx) {
  const Tree tree;
  make_dgx(tree);
  const std::vector<Interface> all = tree.host(kDgxLines);
  CHECK_EQUAL(chosen(all), "bond0=10.2.0.5 eno3=10.1.0.5");
  CHECK_EQUAL(chosen(all, {"bond0"}), "bond0=10.2.0.5");
  CHECK_EQUAL(chosen(all, {"^eno3"}), "bond0=10.2.0.5");
  CHECK_EQUAL(what_it_is(named(all, "bond0")), "bond of enp170s0f1np1, enp41s0f1np1");
  CHECK_EQUAL(what_it_is(named(all, "eno3")), "NIC");
  CHECK_EQUAL(named(all, "eno3").speed_mbps, 10'000);
  CHECK(named(all, "ibp10s0").pci_path.find("pci0000:10/0000:10:01.0") != std::string::npos);
  CHECK_EQUAL(ports_of(tree), "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_bond_0");
  // As NCCL reads NCCL_IB_HCA: beginnings of names, or with '=' whole names; '^' leaves them out; a port after ':'.
  CHECK_EQUAL(ports_of(tree, {"", "mlx5_0,mlx5_1"}), "mlx5_0 mlx5_1");
  CHECK_EQUAL(ports_of(tree, {"", "mlx5_b"}), "mlx5_bond_0");
  CHECK_EQUAL(ports_of(tree, {"", "^mlx5_bond_0,mlx5_1"}), "mlx5_0 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7");
  CHECK_EQUAL(ports_of(tree, {"", "=mlx5_0:1,mlx5_2:2"}), "mlx5_0");
  CHECK_EQUAL(ports_of(tree, {"", "^=mlx5"}), ports_of(tree));
  // NCCL_IB_GID_INDEX is about RoCE alone.
  CHECK_EQUAL(ports_of(tree, {"", "mlx5_0,mlx5_bond_0", 3}), "mlx5_0 mlx5_bond_0@3");
  // Our own setting comes first, and an index in it before that of NCCL.
  CHECK_EQUAL(ports_of(tree, {"mlx5_bond_0@1,mlx5_3", "mlx5_0", 3}), "mlx5_bond_0@1 mlx5_3");
  CHECK_EQUAL(ports_of(tree, {"mlx5_2@1+mlx5_bond_0", "mlx5_0", 3}), "mlx5_2@1+mlx5_bond_0@3");
  CHECK(ports_of(tree, {"", "mlx4"}).find("error: NCCL_IB_HCA=mlx4 names no active RDMA port") == 0);
  CHECK(ports_of(tree, {"mlx4_0"}).find("error: RDMA port 'mlx4_0' (WEFT_RDMA_DEVICES) does not exist") == 0);
}

// One Ethernet NIC with an address; 32 EFA devices, which speak a protocol of their own.
TEST(host_trees__a_p5_48xlarge) {
  const Tree tree;
  tree.nic("ens32", "pci0000:20/0000:20:00.0", -1);
  for (int number = 10; number < 42; ++number) {
    tree.rdma("rdmap" + std::to_string(number) + "s0", "Unspecified", 100, "",
              "fe80:0000:0000:0000:0000:00ff:fe00:00" + std::to_string(number));
  }
  const std::vector<Interface> all = tree.host({"ens32 nic 172.31.4.9/20", "docker0 bridge 172.17.0.1/16"});
  CHECK_EQUAL(chosen(all), "ens32=172.31.4.9");
  CHECK_EQUAL(named(all, "ens32").speed_mbps, 0);
  const std::string said = ports_of(tree);
  CHECK(said.find("error: no RDMA port is active") == 0);
  CHECK(said.find("rdmap10s0:1 (neither RoCE nor InfiniBand)") != std::string::npos);
}

// Nine virtual NICs, each in a network of its own: one for the host, eight for the GPUs. No RDMA.
TEST(host_trees__an_a3_mega) {
  const Tree tree;
  std::vector<std::string> lines = {"enp0s12 nic 10.128.0.5/32", "docker0 bridge 172.17.0.1/16"};
  std::string wanted = "enp0s12=10.128.0.5";
  tree.nic("enp0s12", "pci0000:00/0000:00:0c.0", -1);
  for (const int bus : {6, 7, 13, 14, 134, 135, 141, 142}) {
    const std::string name = "enp" + std::to_string(bus) + "s0", address = "10.0." + std::to_string(bus) + ".5";
    tree.nic(name, "pci0000:01/0000:" + std::to_string(bus) + ":00.0", 200'000);
    lines.push_back(name + " nic " + address + "/32");  // the address of such a NIC is a /32, and it is no tunnel
    wanted.append(" ").append(name).append("=").append(address);
  }
  const std::vector<Interface> all = tree.host(lines);
  CHECK_EQUAL(chosen(all), wanted);
  CHECK_EQUAL(chosen(all, {"enp6s0,enp7s0"}), "enp6s0=10.0.6.5 enp7s0=10.0.7.5");
  CHECK_EQUAL(chosen(all, {"", "auto", "enp6s0,enp7s0"}), "enp6s0=10.0.6.5 enp7s0=10.0.7.5");
  CHECK(list_rdma_ports(tree.root()).empty());
}

TEST(host_trees__a_virtual_machine_with_one_nic) {
  const Tree tree;
  tree.nic("eth0", "pci0000:00/0000:00:03.0/virtio0", -1);
  const std::vector<Interface> all = tree.host({"eth0 nic 192.168.5.20/24 fe80::5054:ff:fe12:3456/64"});
  CHECK_EQUAL(chosen(all), "eth0=192.168.5.20");
  CHECK_EQUAL(what_it_is(named(all, "lo")), "loopback");
}

// The host's only address is on a bridge above a VLAN of its NIC.
TEST(host_trees__a_host_of_virtual_machines) {
  const Tree tree;
  tree.nic("eth0", "pci0000:00/0000:00:03.0", 25'000);
  tree.above("eth0.100", {"eth0"});
  tree.bridge("br0", {"eth0.100", "tap7"});
  tree.bridge("virbr0", {"tap8"});
  const std::vector<Interface> all =
      tree.host({"eth0 nic", "eth0.100 vlan", "br0 bridge 10.0.0.5/24", "virbr0 bridge 192.168.122.1/24"});
  CHECK_EQUAL(chosen(all), "br0=10.0.0.5");
}

// A node with Cilium: a VLAN on a NIC for storage, a virtual function handed to a pod, overlays and bridges.
TEST(host_trees__a_kubernetes_node) {
  const Tree tree;
  tree.nic("eth0", "pci0000:00/0000:00:03.0", 25'000);
  tree.virtual_function("eth0v3", "pci0000:00/0000:00:03.4", 25'000);
  tree.write("class/net/eth0.100/uevent", "DEVTYPE=vlan\nINTERFACE=eth0.100");
  tree.above("eth0.100", {"eth0"});
  tree.bridge("cni0", {"lxc12", "lxc34"});
  tree.bridge("br-storage", {"eth0"});
  const std::vector<Interface> all =
      tree.host({"eth0 nic 10.77.0.1/24", "eth0v3 nic 10.77.1.1/24", "eth0.100 vlan 10.99.0.1/24",
                 "cilium_vxlan vxlan fe80::3/64", "cilium_host veth 10.0.0.7/32", "lxc12 veth fe80::1/64",
                 "lxc34 veth fe80::2/64", "cni0 nic 10.244.0.1/24", "br-storage nic 10.88.0.1/24",
                 "kube-ipvs0 dummy 10.96.0.1/32"});
  CHECK_EQUAL(chosen(all), "eth0=10.77.0.1 eth0v3=10.77.1.1 eth0.100=10.99.0.1 br-storage=10.88.0.1");
  CHECK_EQUAL(what_it_is(named(all, "eth0.100")), "VLAN of eth0");
  CHECK_EQUAL(what_it_is(named(all, "eth0v3")), "virtual function");
  CHECK_EQUAL(what_it_is(named(all, "cni0")), "bridge");
  CHECK_EQUAL(why_left_out(named(all, "cni0"), "auto"), "a bridge of this host");
  CHECK_EQUAL(why_left_out(named(all, "cilium_host"), "auto"), "a network of containers or virtual machines");
}
