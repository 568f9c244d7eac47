//! Who calls: the common name in a client's certificate. The certificate was verified before; this only reads it.

/// The object identifier of a common name, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// The version of a certificate, which may be left out.
const VERSION: u8 = 0xa0;
/// UTF8String, PrintableString and IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The common name of a certificate's subject; none where there is none, or more than one.
#[must_use]
pub fn common_name(certificate: &[u8]) -> Option<String> {
    let (whole, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(whole, SEQUENCE)?;
    if let Some((_, after)) = element(rest, VERSION) {
        rest = after;
    }
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        rest = any(rest)?.2;
    }
    let (mut subject, _) = element(rest, SEQUENCE)?;
    let mut found = None;
    while !subject.is_empty() {
        let (mut names, after) = element(subject, SET)?;
        subject = after;
        while !names.is_empty() {
            let (name, after) = element(names, SEQUENCE)?;
            names = after;
            let (kind, value) = element(name, OBJECT)?;
            if kind != COMMON_NAME {
                continue;
            }
            let (tag, text, _) = any(value)?;
            let text = std::str::from_utf8(text).ok()?;
            if !TEXTS.contains(&tag) || found.replace(text.to_owned()).is_some() {
                return None;
            }
        }
    }
    found
}

/// The content of the first element, which has this tag, and what comes after it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = any(bytes)?;
    (found == tag).then_some((content, rest))
}

/// The first element: its tag, its content, and what comes after it. Lengths of up to four bytes.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0_usize, |sum, digit| sum << 8 | usize::from(*digit));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[(rcgen::DnType, &str)]) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(vec!["other.example".into()]).expect("parameters");
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, name) in names {
            parameters.distinguished_name.push(kind.clone(), *name);
        }
        parameters
            .self_signed(&key)
            .expect("a certificate")
            .der()
            .to_vec()
    }

    #[test]
    fn the_subjects_common_name_is_read() {
        use rcgen::DnType::{CommonName, OrganizationName};

        let of = |names: &[_]| common_name(&certificate(names));
        let long = "x".repeat(300);
        for name in ["system:kube-scheduler", "ü", &long] {
            assert_eq!(
                of(&[(OrganizationName, "system:masters"), (CommonName, name)]).as_deref(),
                Some(name)
            );
        }
        assert_eq!(of(&[(OrganizationName, "system:kube-scheduler")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn two_names_are_none_and_what_is_cut_off_is_none() {
        let whole = certificate(&[(rcgen::DnType::CommonName, "name")]);
        for end in 0..whole.len() {
            let _no_panic = common_name(&whole[..end]);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _no_panic = common_name(&damaged);
        }
        // Subject and issuer of one that is self-signed are alike: the second is doubled by hand.
        let name = [
            &[0x31, 0x0f, 0x30, 0x0d, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 0x06][..],
            b"abcdef",
        ]
        .concat();
        let wrap =
            |tag: u8, body: &[u8]| [&[tag, u8::try_from(body.len()).expect("short")][..], body].concat();
        let of = |subject: &[u8]| {
            let empty = wrap(SEQUENCE, &[]);
            let parts = [
                wrap(0x02, &[1]),
                empty.clone(),
                empty.clone(),
                empty,
                wrap(SEQUENCE, subject),
            ];
            common_name(&wrap(SEQUENCE, &wrap(SEQUENCE, &parts.concat())))
        };
        assert_eq!(of(&name).as_deref(), Some("abcdef"));
        assert_eq!(of(&name.repeat(2)), None);
    }
}
