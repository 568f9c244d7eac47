//! The commands that make GPUs of a cloud usable, in order.

use super::Product;
use super::conf::Form;

/// A flavor: the article's proportions, ten processors and 100 GiB for each GPU, unless others are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// How many GPUs.
    pub gpus: u32,
    /// Processors.
    pub vcpus: u32,
    /// MiB of memory.
    pub memory_mib: u64,
    /// GiB of the ephemeral disk.
    pub ephemeral_gib: u64,
}

/// The flavors for 1, 2, 4 and 8 GPUs.
#[must_use]
pub fn flavors(vcpus: u32, memory_gib: u64) -> Vec<Flavor> {
    [(1, 800), (2, 1600), (4, 3200), (8, 6500)]
        .into_iter()
        .map(|(gpus, ephemeral_gib)| Flavor {
            gpus,
            vcpus: vcpus * gpus,
            memory_mib: memory_gib * 1024 * u64::from(gpus),
            ephemeral_gib,
        })
        .collect()
}

/// What the first server is made of.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Its network.
    pub network: String,
    /// The network of floating addresses.
    pub external: String,
}

/// The words of each command, in order.
#[must_use]
pub fn commands(products: &[Product], flavors: &[Flavor], server: &Server, form: Form) -> Vec<Vec<String>> {
    let mut commands: Vec<Vec<String>> = Vec::new();
    let mut add = |line: &str, more: &[String]| {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        words.extend(more.iter().cloned());
        commands.push(words);
    };
    let text = str::to_owned;
    for product in products {
        if form == Form::Now {
            add(
                "openstack --os-placement-api-version 1.6 trait create",
                std::slice::from_ref(&product.trait_name),
            );
        }
        for flavor in flavors {
            let name = format!("{}.{}", product.alias, flavor.gpus);
            let numbers = [
                name.clone(),
                text("--vcpus"),
                flavor.vcpus.to_string(),
                text("--ram"),
                flavor.memory_mib.to_string(),
                text("--disk"),
                text("100"),
                text("--ephemeral"),
                flavor.ephemeral_gib.to_string(),
            ];
            let properties = [
                format!("pci_passthrough:alias={}:{}", product.alias, flavor.gpus),
                text("hw:pci_numa_affinity_policy=preferred"),
                text("hw:cpu_policy=dedicated"),
                text("hw:mem_page_size=1GB"),
            ];
            match form {
                Form::Now => {
                    let mut words = numbers.to_vec();
                    for property in properties {
                        words.extend([text("--property"), property]);
                    }
                    add("openstack flavor create", &words);
                }
                Form::Old => {
                    let short = [
                        name.clone(),
                        text("auto"),
                        flavor.memory_mib.to_string(),
                        text("100"),
                        flavor.vcpus.to_string(),
                        text("--ephemeral"),
                        flavor.ephemeral_gib.to_string(),
                    ];
                    add("nova flavor-create", &short);
                    let mut words = vec![name, text("set")];
                    words.extend(properties);
                    add("nova flavor-key", &words);
                }
            }
        }
    }
    let Some(product) = products.first() else {
        return commands;
    };
    let flavor = format!(
        "{}.{}",
        product.alias,
        flavors.first().map_or(1, |flavor| flavor.gpus)
    );
    let Server {
        name,
        image,
        network,
        external,
    } = server;
    let group = format!("{name}-ssh");
    let volume = format!("{name}-data");
    match form {
        Form::Now => {
            add("openstack security group create", std::slice::from_ref(&group));
            add(
                "openstack security group rule create --protocol tcp --dst-port 22",
                std::slice::from_ref(&group),
            );
            add(
                "openstack volume create --size 200",
                std::slice::from_ref(&volume),
            );
            let own = [
                "--flavor",
                &flavor,
                "--image",
                image,
                "--network",
                network,
                "--security-group",
                &group,
            ];
            let mut words: Vec<String> = own.map(str::to_owned).to_vec();
            words.extend([text("--wait"), name.clone()]);
            add("openstack server create", &words);
            add("openstack server add volume", &[name.clone(), volume]);
            add(
                "openstack floating ip create",
                &[text("--tag"), name.clone(), external.clone()],
            );
            add(
                "openstack server add floating ip",
                &[name.clone(), text("ADDRESS")],
            );
        }
        Form::Old => {
            add("neutron security-group-create", std::slice::from_ref(&group));
            add(
                "neutron security-group-rule-create --protocol tcp --port-range-min 22 --port-range-max 22",
                std::slice::from_ref(&group),
            );
            add("cinder create --name", &[volume.clone(), text("200")]);
            let own = [
                "--flavor",
                &flavor,
                "--image",
                image,
                "--nic",
                &format!("net-name={network}"),
                "--security-groups",
                &group,
            ];
            let mut words: Vec<String> = own.map(str::to_owned).to_vec();
            words.extend([text("--poll"), name.clone()]);
            add("nova boot", &words);
            add("nova volume-attach", &[name.clone(), volume]);
            add("neutron floatingip-create", std::slice::from_ref(external));
            add("nova floating-ip-associate", &[name.clone(), text("ADDRESS")]);
        }
    }
    commands
}
