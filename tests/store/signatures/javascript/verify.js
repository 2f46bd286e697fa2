// SPDX-License-Identifier: Apache-2.0
// Verifies bundles with public keys, by Sigstore's JavaScript client: node verify.js MODULES {KEY BUNDLE}...
// Prints "verified" or the code of the refusal for each of them.

const { createPublicKey } = require("node:crypto");
const { readFileSync } = require("node:fs");
const { createRequire } = require("node:module");

const [modules, ...files] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { bundleFromJSON } = load("@sigstore/bundle");
const { Verifier, toSignedEntity, toTrustMaterial } = load("@sigstore/verify");

function verify(key, bundle) {
  const publicKey = createPublicKey(readFileSync(key));
  const nobody = { certificateAuthorities: [], ctlogs: [], tlogs: [], timestampAuthorities: [] };
  const trusted = toTrustMaterial(nobody, () => ({ publicKey, validFor: () => true }));
  const verifier = new Verifier(trusted, { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 });
  try {
    verifier.verify(toSignedEntity(bundleFromJSON(JSON.parse(readFileSync(bundle)))));
    return "verified";
  } catch (error) {
    return error.code || error.name;
  }
}

for (let each = 0; each < files.length; each += 2) console.log(verify(files[each], files[each + 1]));
