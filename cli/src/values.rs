//! Values of flags as people write them: `2GiB`, `500ms`, `latest`.

use millstream::{Epoch, Restore};

/// Reads a number of bytes: `1024`, `64KiB`, `1.5GiB`, `200MB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let wrong = || "write a number of bytes such as 1048576, 64MiB or 1.5GiB".to_owned();
    let (_, unit) = unit.ok_or_else(wrong)?;
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(*unit).ok_or_else(wrong);
    }
    match number.parse::<f64>() {
        #[expect(clippy::cast_precision_loss, reason = "units are powers of two or ten")]
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked against the range")]
        Ok(number) if number * (*unit as f64) < 9e18 => Ok((number * *unit as f64) as u64),
        _ => Err(wrong()),
    }
}

/// Reads a size that must fit the address space.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    usize::try_from(bytes(text)?).map_err(|_| "more than this machine can address".to_owned())
}

/// Reads a positive rate: `5000`, `1e6`, `50k`, `1.5M`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    match number.parse::<f64>().map(|number| number * factor) {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("write a number of records per second above zero, such as 5000, 50k or 1.5M".to_owned()),
    }
}

/// Reads what to restore: `latest`, `none` or the number of an epoch.
pub(crate) fn restore(text: &str) -> Result<Restore, String> {
    match text {
        "latest" => Ok(Restore::Latest),
        "none" => Ok(Restore::Nothing),
        _ => text.parse().map(|number| Restore::Epoch(Epoch(number))).map_err(|_| {
            "write latest, none, or the number of an epoch that `millstream snapshot list` shows".to_owned()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_two_and_of_ten() {
        let rows: [(&str, Option<u64>); 9] = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64KiB", Some(64 << 10)),
            ("2 gib", Some(2 << 30)),
            ("1.5MiB", Some(3 << 19)),
            ("200MB", Some(200_000_000)),
            ("", None),
            ("2 parsecs", None),
            ("99999999999TiB", None),
        ];
        for (text, expected) in rows {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn rates_are_positive() {
        assert_eq!(rate("50k"), Ok(50_000.0));
        assert_eq!(rate("1.5M"), Ok(1_500_000.0));
        assert!(rate("0").is_err() && rate("-1").is_err() && rate("inf").is_err() && rate("fast").is_err());
    }

    #[test]
    fn a_restore_is_a_word_or_an_epoch() {
        assert_eq!(restore("latest"), Ok(Restore::Latest));
        assert_eq!(restore("none"), Ok(Restore::Nothing));
        assert_eq!(restore("17"), Ok(Restore::Epoch(Epoch(17))));
        assert!(restore("yesterday").unwrap_err().contains("snapshot list"));
    }
}
