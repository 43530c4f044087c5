//! The combined format of nginx and Apache, and what is made of it: the common one, which lacks two
//! fields; with a host in front; with `X-Forwarded-For` behind, as in nginx's own example.
//!
//! ```text
//! [host[:port] ]address ident user [time] "request" status bytes[ "referer" "agent"[ "for whom"]]
//! ```

use super::chunk::{Span, Unreadable};
use super::fields::{Field, address, put};
use super::json::Draft;
use memchr::{memchr, memchr2};

/// Reads the line of the text that ends there.
pub(super) fn read(text: &[u8], start: usize, draft: &mut Draft<'_>) -> Result<(), Unreadable> {
    const NOT: Unreadable = Unreadable::NotCombined;
    let (who, mut at) = word(text, start).ok_or(NOT)?;
    let mut ip = address(&text[who.0..who.1]);
    // A host first, as in Apache's vhost_combined; it may be an address, too.
    let second = word(text, at);
    let second_ip = second.and_then(|((start, end), _)| address(&text[start..end]));
    if let (Some((_, next)), true) = (second, second_ip.is_some() || ip.is_none()) {
        draft.entry.host = Span::new(who.0, who.1);
        (at, ip) = (next, second_ip);
    }
    let Some(ip) = ip else {
        // A name in the place of the address, if the rest is as it should be.
        return Err(if memchr(b'[', &text[start..]).is_some() {
            Unreadable::BadAddress
        } else {
            NOT
        });
    };
    draft.entry.ip = ip;
    let (_ident, at) = word(text, at).ok_or(NOT)?;
    // A user's name may have spaces in it.
    let bracket = at + memchr(b'[', &text[at..]).ok_or(NOT)?;
    let user = text[at..bracket].trim_ascii_end();
    keep(Field::User, text, (at, at + user.len()), draft)?;
    let close = bracket + memchr(b']', &text[bracket..]).ok_or(NOT)?;
    keep(Field::Time, text, (bracket + 1, close), draft)?;
    let (request, at) = quoted(text, close + 1).ok_or(NOT)?;
    keep(Field::Request, text, request, draft)?;
    let (status, at) = word(text, space(text, at)).ok_or(NOT)?;
    keep(Field::Status, text, status, draft)?;
    let (bytes, at) = word(text, at).unwrap_or(((at, at), at));
    keep(Field::Bytes, text, bytes, draft)?;
    // Referer and agent tell nothing; what comes third in quotes is for whom.
    let mut rest = at;
    for place in 0..3 {
        let Some((field, next)) = quoted(text, rest) else { break };
        if place == 2 {
            keep(Field::ForwardedFor, text, field, draft)?;
        }
        rest = next;
    }
    Ok(())
}

fn keep(
    field: Field,
    text: &[u8],
    (start, end): (usize, usize),
    draft: &mut Draft<'_>,
) -> Result<(), Unreadable> {
    let span = Span::new(start, end);
    put(field, &text[start..end], span, draft.entry, draft.extras, draft.moments)
}

fn space(text: &[u8], at: usize) -> usize {
    if text.get(at) == Some(&b' ') { at + 1 } else { at }
}

/// Up to the next space, and what follows that.
fn word(text: &[u8], at: usize) -> Option<((usize, usize), usize)> {
    let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
    let end = at + memchr(b' ', rest).unwrap_or(rest.len());
    (end > at).then(|| ((at, end), (end + 1).min(text.len())))
}

/// What is in quotes, and where they end. What is escaped stays so: it is no part of a good path.
fn quoted(text: &[u8], at: usize) -> Option<((usize, usize), usize)> {
    let at = space(text, at);
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let mut end = at + 1;
    loop {
        end += memchr2(b'"', b'\\', text.get(end..)?)?;
        if text[end] == b'"' {
            return Some(((at + 1, end), end + 1));
        }
        end += 2;
    }
}
